//! The wait for replicas: `WAIT`, or `WAITAOF` if writes must be on the master's disk, too.
//!
//! `WAIT` counts the replicas that have all writes that its own connection has made so far. On a
//! connection without writes it returns at once, and proves nothing about writes of other
//! connections.

use std::fmt;
use std::io;
use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::{Cmd, RedisResult};

/// The number of replicas that must have a write, and the longest wait for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    replicas: u32,
    timeout: Duration,
    /// Whether the write must be on the master's disk, too.
    local: bool,
}

/// The error that too few replicas had the write when the time was over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooFew {
    /// Number of replicas that have the write.
    pub reached: u64,
    /// Number of replicas that should have the write.
    pub wanted: u32,
    /// True if the write should be on the master's disk, but is not.
    pub not_local: bool,
}

impl fmt::Display for TooFew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} replicas have it", self.reached, self.wanted)?;
        if self.not_local {
            f.write_str(", and it is not on the master's disk")
        } else {
            Ok(())
        }
    }
}

impl Wait {
    /// Returns `None` if there is nothing to wait for.
    pub fn new(replicas: u32, timeout: Duration, local: bool) -> Option<Self> {
        // A timeout of 0 would wait for ever, so it is raised to 1 ms.
        let timeout = timeout.clamp(Duration::from_millis(1), Duration::from_secs(60));
        (replicas > 0 || local).then_some(Self {
            replicas,
            timeout,
            local,
        })
    }

    /// Returns the longest time for which Redis waits before it replies.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    fn cmd(&self) -> Cmd {
        let ms = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
        if self.local {
            redis::cmd("WAITAOF")
                .arg(1)
                .arg(self.replicas)
                .arg(ms)
                .take()
        } else {
            redis::cmd("WAIT").arg(self.replicas).arg(ms).take()
        }
    }

    /// Checks that the server supports this wait.
    ///
    /// # Errors
    /// The server does not know the command, the user may not use it, or the server has no
    /// append-only file.
    pub async fn check(&self, conn: &mut impl ConnectionLike) -> RedisResult<()> {
        let soon = Self {
            replicas: 0,
            timeout: Duration::from_millis(1),
            local: self.local,
        };
        match soon.cmd().exec_async(conn).await {
            Err(error) if self.local && error.to_string().contains("unknown command") => {
                let text =
                    "the server has no WAITAOF: --wait-local needs Redis 7.2 or newer, or Valkey";
                Err(io::Error::new(io::ErrorKind::InvalidInput, text).into())
            }
            done => done,
        }
    }

    /// Waits until enough replicas have all writes of this connection, or until the time is over.
    ///
    /// # Errors
    /// The connection failed, or the server does not know the command.
    pub async fn run(&self, conn: &mut impl ConnectionLike) -> RedisResult<Result<(), TooFew>> {
        let (local, reached) = if self.local {
            let (local, replicas): (u64, u64) = self.cmd().query_async(conn).await?;
            (local >= 1, replicas)
        } else {
            (true, self.cmd().query_async(conn).await?)
        };
        let enough = local && reached >= u64::from(self.replicas);
        Ok(if enough {
            Ok(())
        } else {
            Err(TooFew {
                reached,
                wanted: self.replicas,
                not_local: !local,
            })
        })
    }
}
