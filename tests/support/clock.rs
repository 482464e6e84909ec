//! A clock of a test's own Redis that the test can set. A small library, built with `cc`, is
//! preloaded into the server.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The clock of one server, with its difference from the machine's clock.
pub struct Clock {
    dir: tempfile::TempDir,
    offset: File,
}

impl Clock {
    /// Builds the library, and makes a clock that shows the machine's time.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let source = dir.path().join("clock.c");
        std::fs::write(&source, include_str!("clock.c")).expect("the source is written");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-o"])
            .arg(dir.path().join("clock.so"))
            .arg(&source)
            .output();
        let built = built.expect("these tests need a C compiler, cc");
        assert!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        );
        let offset = File::create(dir.path().join("offset")).expect("a file");
        let clock = Self { dir, offset };
        clock.set(0);
        clock
            .offset
            .write_all_at(&[0; 8], 8)
            .expect("the time is written");
        clock
    }

    /// Returns the environment variables for the server.
    pub fn environment(&self) -> Vec<(String, PathBuf)> {
        let file = |name: &str| self.dir.path().join(name);
        vec![
            ("LD_PRELOAD".to_owned(), file("clock.so")),
            ("CLOCK_OFFSET_FILE".to_owned(), file("offset")),
        ]
    }

    /// Sets the clock back by this much, relative to the machine's time.
    pub fn step_back(&self, by: Duration) {
        self.set(-i64::try_from(by.as_micros()).expect("not so far"));
    }

    /// Sets the clock ahead by this much, relative to the machine's time.
    pub fn step_ahead(&self, by: Duration) {
        self.set(i64::try_from(by.as_micros()).expect("not so far"));
    }

    /// Lets the clock stand still at this time, in microseconds since 1970.
    pub fn stop_at(&self, us: u64) {
        let us = i64::try_from(us).expect("not so late");
        self.offset
            .write_all_at(&us.to_ne_bytes(), 8)
            .expect("the time is written");
    }

    fn set(&self, offset_us: i64) {
        self.offset
            .write_all_at(&offset_us.to_ne_bytes(), 0)
            .expect("the offset is written");
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}
