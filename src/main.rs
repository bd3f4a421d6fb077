//! placeholder
fn main() {
    if let Some(code) = gpuresid::observe::driver::inner_command(std::env::args_os()) {
        std::process::exit(code);
    }
}
