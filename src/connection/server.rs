//! The Redis to use: a URL, and files with secrets and certificates, because these should not be in
//! a URL.

use std::fmt;
use std::path::PathBuf;

/// The Redis to use: a URL, and files with passwords and certificates.
///
/// Every function that takes `impl Into<Server>` takes a URL as text, too. These URLs exist:
///
/// | URL | server |
/// |---|---|
/// | `host`, `host:port`, `redis://[user:password@]host[:port][/db]` | the server at this address |
/// | `rediss://…` | the same, over TLS (feature `tls`) |
/// | `unix:///path`, `/path` | the server at this socket |
/// | `redis-sentinel://[user:password@]host[:port],host[:port]…/SERVICE[/db]` | the master that a majority of these Sentinels names; default port 26379 |
/// | `rediss-sentinel://…` | the same, over TLS, to the Sentinels, too (feature `tls`) |
///
/// The files are read again for each connection. So a new password or certificate needs no restart.
///
/// # Example
///
/// ```no_run
/// # async fn run() -> Result<(), seriatim::EmitError> {
/// use seriatim::{Emitter, Server};
///
/// let server = Server::new("rediss://shop@redis.internal")
///     .password_file("/run/secrets/redis-password")
///     .ca_file("/etc/ssl/internal-ca.pem");
/// let emitter = Emitter::connect(server).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Server {
    pub(crate) url: String,
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) sentinel_user: Option<String>,
    pub(crate) sentinel_password_file: Option<PathBuf>,
    pub(crate) sentinel_map: Vec<(String, String)>,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

impl Server {
    /// Sets the URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            ..Self::default()
        }
    }

    /// Sets the file with the password of the master. It replaces a password in the URL. A line end
    /// after the password is not part of it.
    #[must_use]
    pub fn password_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.password_file = Some(path.into());
        self
    }

    /// Sets the user for the Sentinels. Default: Redis' user `default`. User and password in the
    /// URL are only for the master.
    #[must_use]
    pub fn sentinel_user(mut self, user: impl Into<String>) -> Self {
        self.sentinel_user = Some(user.into());
        self
    }

    /// Sets the file with the password for the Sentinels. Default: no password.
    #[must_use]
    pub fn sentinel_password_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.sentinel_password_file = Some(path.into());
        self
    }

    /// Connects to `reachable` if the Sentinels announce `announced` as the master. Both are
    /// `HOST:PORT`. Call it once for each server that has another address from here, for example
    /// behind NAT or in a container. Default: every announced address is used as it is.
    ///
    /// With TLS, the certificate must be for the host of `reachable`. Connecting fails with
    /// [`EmitError::Sentinels`](crate::EmitError::Sentinels) if an address is invalid, if an address
    /// is announced twice, or if the URL names no Sentinels.
    #[must_use]
    pub fn sentinel_map(
        mut self,
        announced: impl Into<String>,
        reachable: impl Into<String>,
    ) -> Self {
        self.sentinel_map.push((announced.into(), reachable.into()));
        self
    }

    /// Sets the file with certificates of authorities, in PEM. The server's certificate must come
    /// from one of them. Default: the authorities of the system.
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// Sets the files with the client's own certificate chain and its key, in PEM. Default: none.
    #[must_use]
    pub fn identity_files(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.identity = Some((certificate.into(), key.into()));
        self
    }
}

impl From<&str> for Server {
    fn from(url: &str) -> Self {
        Self::new(url)
    }
}

impl From<String> for Server {
    fn from(url: String) -> Self {
        Self::new(url)
    }
}

impl From<&String> for Server {
    fn from(url: &String) -> Self {
        Self::new(url)
    }
}

impl From<&Self> for Server {
    fn from(server: &Self) -> Self {
        server.clone()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL is left out, because it may contain a password.
        f.debug_struct("Server").finish_non_exhaustive()
    }
}
