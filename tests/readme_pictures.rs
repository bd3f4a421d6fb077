//! The script that draws the pictures of README and guide, on the fake driver: each shows a real run, is an SVG that a
//! browser reads on light and dark pages, and the same screen gives the same bytes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what broke by breaking")]

mod support;

use std::{fs, path::Path, process::Command};
use support::{Finished, Rig};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gpu/screens.py");
const PICTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/guide/pictures");

/// The text of a picture, line by line, read as XML.
const TEXT: &str = "\
import sys, xml.etree.ElementTree as E
rows = {}
for text in E.parse(sys.argv[1]).iter('{http://www.w3.org/2000/svg}text'):
    rows.setdefault(float(text.get('y')), []).append(text.text)
print('\\n'.join(' '.join(rows[y]) for y in sorted(rows)))
";

fn python(arguments: &[&str]) -> String {
    let output = Command::new("python3").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn text(picture: &Path) -> String {
    python(&["-c", TEXT, picture.to_str().unwrap()])
}

fn draw(rig: &Rig, out: &Path) -> Finished {
    let line = ["python3", SCRIPT, "--binary", env!("CARGO_BIN_EXE_gpuresid"), "--simulated"].map(Into::into);
    let rest = [rig.library().into(), "--out".into(), out.into()];
    let mut command = rig.beside(&[line.to_vec(), rest.to_vec()].concat());
    command.env("GPURESID_SETTLE", "1s").env("NO_COLOR", "1").env("GPURESID_QUIET", "1");
    rig.launch(command).wait()
}

#[test]
fn the_pictures_show_what_is_printed() {
    let rig = Rig::new();
    let out = rig.path("pictures");
    draw(&rig, &out).expect_code(0);
    let shown = |name: &str| text(&out.join(name));
    let hidden = shown("hidden.svg");
    assert!(hidden.starts_with("$ gpuresid\nGPU memory: ") && hidden.contains(" forked copy "), "{hidden}");
    assert!(hidden.contains("\n 1. kill ") || hidden.contains("\n1. kill "), "{hidden}");
    let leftover = shown("leftover.svg");
    assert!(leftover.starts_with("$ gpuresid check -- python train.py\ngpuresid: residue : 2566 MiB"), "{leftover}");
    assert!(leftover.contains("python worker.py") && leftover.ends_with("exit code 121\n"), "{leftover}");
    let clean = shown("clean.svg");
    assert!(clean.contains("\ngpuresid: clean : all GPU memory came back") && clean.lines().count() == 2, "{clean}");
}

#[test]
fn the_pictures_in_the_tree_are_read_on_light_and_dark_pages() {
    let pictures: Vec<_> = fs::read_dir(PICTURES).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(pictures.len(), 3, "{pictures:?}");
    for picture in pictures {
        let svg = fs::read_to_string(&picture).unwrap();
        assert!(svg.contains("@media (prefers-color-scheme: dark)") && svg.contains("<title>"), "{svg}");
        assert!(text(&picture).starts_with("$ "), "{svg}");
    }
}

/// Python that has the module, and draws what a terminal was told.
fn drawn(told: &str) -> String {
    let directory = Path::new(SCRIPT).parent().unwrap().to_str().unwrap();
    let line = "import sys; sys.dont_write_bytecode = True; sys.path.insert(0, sys.argv[1]); import screens\n\
                print(screens.svg('t', screens.Screen(20).write(eval(sys.argv[2]))), end='')";
    python(&["-c", line, directory, told])
}

#[test]
fn the_same_screen_gives_the_same_picture() {
    // A line that is written anew, a style that ends, a wide script, a line that is broken, what XML would read as its own.
    let told = r"'waiting ...\r\x1b[K\x1b[1m\x1b[31mred\x1b[0m <&>\r\n\u663e\u5b58 x\r\n' + '1234567890' * 2 + 'ab'";
    let svg = drawn(told);
    assert_eq!(svg, drawn(told));
    let runs: Vec<_> = svg.lines().filter(|line| line.starts_with("<text ")).collect();
    assert_eq!(
        runs,
        [
            r#"<text x="16.0" y="30" textLength="25.2" lengthAdjust="spacingAndGlyphs" class="bold red">red</text>"#,
            r#"<text x="49.6" y="30" textLength="25.2" lengthAdjust="spacingAndGlyphs">&lt;&amp;&gt;</text>"#,
            r#"<text x="16.0" y="49" textLength="50.4" lengthAdjust="spacingAndGlyphs">显存 x</text>"#,
            r#"<text x="16.0" y="68" textLength="168.0" lengthAdjust="spacingAndGlyphs">12345678901234567890</text>"#,
            r#"<text x="16.0" y="87" textLength="16.8" lengthAdjust="spacingAndGlyphs">ab</text>"#,
        ]
    );
}
