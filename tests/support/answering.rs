//! A proxy in front of Redis that answers some commands by itself, as proxies and managed servers do.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

use super::Redis;

type Answer = dyn Fn(&[String]) -> Option<String> + Send + Sync;

/// Passes on one command at a time. Its rule sees the words of each command, the first one in upper
/// case, and may return the answer.
pub struct Answering {
    dir: tempfile::TempDir,
    task: JoinHandle<()>,
}

impl Answering {
    /// Makes a proxy in front of a private server.
    pub fn before(
        redis: &Redis,
        answer: impl Fn(&[String]) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let server = PathBuf::from(
            redis
                .url()
                .strip_prefix("unix://")
                .expect("a server of this test's own"),
        );
        let dir = tempfile::tempdir().expect("a temporary directory");
        let listener = UnixListener::bind(dir.path().join("proxy.sock")).expect("a socket");
        let answer: Arc<Answer> = Arc::new(answer);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass_on(client, server.clone(), Arc::clone(&answer)));
            }
        });
        Self { dir, task }
    }

    /// Makes a proxy that does not know these commands.
    pub fn without(redis: &Redis, unknown: &'static [&'static str]) -> Self {
        Self::before(redis, |words| {
            let is_unknown = unknown.contains(&words[0].as_str());
            is_unknown.then(|| format!("-ERR unknown command '{}'\r\n", words[0]))
        })
    }

    pub fn url(&self) -> String {
        format!("unix://{}", self.dir.path().join("proxy.sock").display())
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns a text as a bulk string of RESP.
pub fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

async fn pass_on(mut client: UnixStream, server: PathBuf, answer: Arc<Answer>) -> Option<()> {
    let mut server = UnixStream::connect(server).await.ok()?;
    let mut bytes = Vec::new();
    loop {
        while let Some((words, len)) = command(&bytes) {
            match answer(&words) {
                Some(own) => client.write_all(own.as_bytes()).await.ok()?,
                None => {
                    server.write_all(&bytes[..len]).await.ok()?;
                    let mut reply = Vec::new();
                    while redis::parse_redis_value(&reply).is_err() {
                        if server.read_buf(&mut reply).await.ok()? == 0 {
                            return None;
                        }
                    }
                    client.write_all(&reply).await.ok()?;
                }
            }
            bytes.drain(..len);
        }
        if client.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

/// Returns the words of the first command, and its length in bytes, if the command is complete.
fn command(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    let mut at = 0;
    let number = |mark: u8, at: &mut usize| {
        let end = bytes
            .get(*at..)?
            .windows(2)
            .position(|pair| pair == b"\r\n")?
            + *at;
        let text = std::str::from_utf8(&bytes[*at..end])
            .expect("a number")
            .strip_prefix(char::from(mark));
        *at = end + 2;
        Some(text.expect("a command").parse::<usize>().expect("a number"))
    };
    let count = number(b'*', &mut at)?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let len = number(b'$', &mut at)?;
        words.push(String::from_utf8_lossy(bytes.get(at..at + len)?).into_owned());
        at += len + 2;
    }
    words[0].make_ascii_uppercase();
    (bytes.len() >= at).then_some((words, at))
}
