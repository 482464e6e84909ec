//! `seriatim serve`: the rights of its users, hostile clients, and where it listens.

mod clients;
mod rights;

use std::process::Stdio;

use crate::serving::{Serving, answer, client_of, command};
use crate::support::Redis;

fn users(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("written");
    file
}

#[tokio::test]
async fn what_cannot_be_served_is_told_at_the_start() {
    let redis = Redis::start();
    let empty = users("# nobody\n");
    let empty = empty.path().to_str().expect("a path");
    for (options, code, why) in [
        (
            vec!["--listen", "0.0.0.0:0"],
            2,
            "can be reached from other machines",
        ),
        (vec!["--listen", "127.0.0.1"], 2, "write HOST:PORT"),
        (vec!["--users", "/nonexistent"], 2, "No such file"),
        (vec!["--users", empty], 2, "it has no user"),
        (
            vec!["--tls-cert", empty, "--tls-key", empty],
            2,
            "cannot be used",
        ),
        // The directory may be made later, so this is no error of usage.
        (
            vec!["--listen", "unix:/nonexistent/socket"],
            1,
            "cannot listen on unix:/nonexistent/socket",
        ),
    ] {
        let output = command(&redis, &options).stdout(Stdio::null()).output();
        let output = output.expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            (output.status.code(), text.contains(why)),
            (Some(code), true),
            "{options:?}: {text}"
        );
    }
}

/// Tests a listener in the file system, and that its file is gone after the stop.
#[tokio::test]
async fn a_socket_in_the_file_system_is_served() {
    let (redis, dir) = (Redis::start(), tempfile::tempdir().expect("a directory"));
    let path = dir.path().join("serve.sock");
    let client = client_of(|client| client.unix_socket(path.clone()));
    let address = format!("unix:{}", path.display());
    let mut serving = Serving::start_at(&redis, &address, &[], client.clone()).await;
    let request = client
        .post("http://localhost/v1/objects/a/events")
        .header("content-type", "application/json")
        .body("1");
    assert_eq!(answer(request).await.status, 202);
    serving.signal(rustix::process::Signal::TERM);
    assert!(serving.ended().await.success() && !path.exists());
}
