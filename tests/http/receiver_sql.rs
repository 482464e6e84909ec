//! The statements of examples/receiver.sql, which `receiver_sql.py` runs in SQLite.

use std::process::Command;

#[test]
fn the_statements_of_a_receiver_handle_each_event_once() {
    let output = Command::new("python3")
        .args(["-B", "tests/http/receiver_sql.py", "examples/receiver.sql"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("python3 runs");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains("\nRan 4 tests in "), "{printed}");
}
