//! Advice on freeing GPU memory that is often repeated, as far as Python alone decides whether it is true.

use serde_json::{Value, json};
use std::process::Command;

#[test]
fn the_advice_does_what_the_guide_says_it_does() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/article.py");
    let output = Command::new("python3").arg(script).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    // A module that is imported at the top of a file is no local name of a function.
    assert_eq!(found["module_in_locals"], json!([false, true]));
    assert_eq!(found["printed_loop_ran"], false);
    // `del obj` in a loop deletes the loop's name; what the list refers to stays until the list lets go.
    assert_eq!(found["alive_after_del_in_loop"], json!([2, 0]));
    // A cycle is there until the collector has run.
    assert_eq!(found["cycle_alive_before_and_after_gc"], json!([true, false]));
    // `wait()` returns with code 0 while the grandchild lives.
    assert_eq!(found["child_code_and_grandchild_alive"], json!([0, true]));
    assert_eq!(found["mib"], json!([3.8, 381.5]));
}
