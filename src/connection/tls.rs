//! TLS to Redis and its Sentinels, with rustls, and the authorities for any TLS.
//!
//! The process chooses the provider of cryptography, for example with
//! `rustls::crypto::ring::default_provider().install_default()`. Certificates are always verified.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::route::read_file;
use super::server::Server;

/// The time for which the authorities of the system are not read again. Reading them takes some ms.
const SYSTEM_ROOTS_FRESH: Duration = Duration::from_secs(10);

/// The files of a TLS client. They are read for each connection, because certificates change.
#[derive(Clone)]
pub(super) struct Tls {
    ca_file: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// Reads the files once, so that a mistake in them is found before the first connection.
    pub(super) fn new(server: &Server) -> Result<Self, String> {
        let tls = Self {
            ca_file: server.ca_file.clone(),
            identity: server.identity.clone(),
        };
        tls.config().map(|_| tls)
    }

    /// Opens TLS over this stream. The server's certificate must be valid for `host`.
    pub(super) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let invalid = |error: String| io::Error::new(io::ErrorKind::InvalidInput, error);
        let this = self.clone();
        let config = tokio::task::spawn_blocking(move || this.config())
            .await
            .map_err(io::Error::other)?
            .map_err(invalid)?;
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| invalid(format!("{host} cannot be the name in a certificate")))?;
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
    }

    fn config(&self) -> Result<ClientConfig, String> {
        let provider = CryptoProvider::get_default()
            .ok_or("the process has no rustls provider; install one first, e.g. rustls::crypto::ring::default_provider()")?;
        let config = ClientConfig::builder_with_provider(Arc::clone(provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots(self.ca_file.as_deref(), "--redis-ca")?);
        match &self.identity {
            None => Ok(config.with_no_client_auth()),
            Some((certificate, key_file)) => {
                let key = read_file(key_file)
                    .map_err(|error| error.to_string())
                    .and_then(|text| {
                        PrivateKeyDer::from_pem_slice(text.as_bytes())
                            .map_err(|error| error.to_string())
                    })
                    .map_err(|error| {
                        format!("the key in {} cannot be read: {error}", key_file.display())
                    })?;
                config
                    .with_client_auth_cert(certificates(certificate)?, key)
                    .map_err(|error| {
                        format!(
                            "the certificate in {} and the key in {} cannot be used: {error}",
                            certificate.display(),
                            key_file.display()
                        )
                    })
            }
        }
    }
}

/// Returns the authorities in this file, or else those of the system. `option` is the name of the
/// option for a file with authorities; error texts use it.
///
/// # Errors
/// The text says why the file cannot be used, or that the system has no authorities.
pub fn roots(ca_file: Option<&Path>, option: &str) -> Result<Arc<RootCertStore>, String> {
    match ca_file {
        Some(path) => roots_in(path).map(Arc::new),
        None => system_roots(option),
    }
}

fn roots_in(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| {
            format!(
                "a certificate in {} cannot be used: {error}",
                path.display()
            )
        })?;
    }
    Ok(roots)
}

/// Returns the authorities of the system, read less than [`SYSTEM_ROOTS_FRESH`] ago. If there are
/// none any more, for example because their file is being replaced, returns the former ones.
/// `option` is the name of the option for a file with authorities; error texts use it.
fn system_roots(option: &str) -> Result<Arc<RootCertStore>, String> {
    static READ: Mutex<Option<(Instant, Arc<RootCertStore>)>> = Mutex::new(None);
    let lock = || READ.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((at, roots)) = &mut *lock() {
        if at.elapsed() < SYSTEM_ROOTS_FRESH {
            return Ok(Arc::clone(roots));
        }
        // The files are read without the lock, because a file system may not answer. Meanwhile other
        // threads use the former authorities.
        *at = Instant::now();
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let mut read = lock();
    if !roots.is_empty() {
        *read = Some((Instant::now(), Arc::new(roots)));
    }
    read.as_ref()
        .map(|(_, roots)| Arc::clone(roots))
        .ok_or_else(|| {
            format!(
                "this system has no certificates of authorities; name a file with them ({option})"
            )
        })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let unread = |error: &dyn std::fmt::Display| {
        format!(
            "the certificates in {} cannot be read: {error}",
            path.display()
        )
    };
    let text = read_file(path).map_err(|error| unread(&error))?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| unread(&error))?;
    if found.is_empty() {
        Err(unread(&"there is none in PEM form"))
    } else {
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test needs a process without a provider. No test of this program installs one.
    #[test]
    fn a_process_without_a_provider_is_told() {
        let error = Tls::new(&Server::new("rediss://host"))
            .map(|_| ())
            .expect_err("no provider");
        assert!(error.contains("no rustls provider"), "{error}");
    }
}
