//! Signals: SIGTERM and SIGINT stop a worker, SIGHUP makes it reopen its file.

use std::fs;

use crate::support::console::PATIENCE;
use crate::support::process::{Process, sent_to};
use crate::support::{Redis, until};

/// Story: SIGHUP killed a worker like a crash, and all its batches had to wait for the end of the
/// lease. Log rotation renames the file and then sends SIGHUP. The worker must close the renamed
/// file at once, not only with its next delivery.
#[tokio::test]
async fn a_hangup_opens_the_file_anew() {
    let (redis, console) = Redis::start().with_console().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (file, renamed) = (dir.path().join("out"), dir.path().join("out.1"));
    let mut process = Process::start(&redis, "w", &format!("file:{}", file.display()), &[]);
    console.emit("work:1", "1").await;
    until("it is delivered", PATIENCE, async || {
        (sent_to(&file).len() == 1).then_some(())
    })
    .await;
    fs::rename(&file, &renamed).expect("renamed");
    process.hang_up();
    process.until_logged("the sink follows its path anew").await;
    assert!(
        file.exists(),
        "nothing was delivered since, and yet the file is there"
    );
    console.emit("work:1", "2").await;
    until("it is delivered", PATIENCE, async || {
        (sent_to(&file).len() == 1).then_some(())
    })
    .await;
    assert_eq!(
        sent_to(&renamed).len(),
        1,
        "nothing more is written into the renamed file"
    );
    process.terminate();
    assert_eq!(process.ended().await.code(), Some(0));
    console.until_at_rest().await;
}

/// A sink without a file ignores SIGHUP, and logs that.
#[tokio::test]
async fn a_hangup_is_ignored_by_other_sinks() {
    let (redis, console) = Redis::start().with_console().await;
    let mut process = Process::start(&redis, "w", "null", &[]);
    process.until_logged("recover: attached").await;
    process.hang_up();
    process
        .until_logged("the sink has nothing to open anew")
        .await;
    console.emit("work:1", "1").await;
    console.until_at_rest().await;
    process.terminate();
    assert_eq!(process.ended().await.code(), Some(0));
}
