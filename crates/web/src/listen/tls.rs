//! The server's certificate for TLS. Open connections keep the certificate with which they began.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

pub(super) struct Certificate {
    files: (PathBuf, PathBuf),
    acceptor: RwLock<TlsAcceptor>,
}

impl Certificate {
    pub(super) fn read(certificate: &Path, key: &Path) -> Result<Self, String> {
        let acceptor = RwLock::new(acceptor(certificate, key)?);
        Ok(Self {
            files: (certificate.to_owned(), key.to_owned()),
            acceptor,
        })
    }

    /// Reads the files again. If this fails, the present certificate stays in use.
    pub(super) fn read_again(&self) -> Result<(), String> {
        let new = acceptor(&self.files.0, &self.files.1)?;
        *self
            .acceptor
            .write()
            .unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, String> {
    let unread = |path: &Path, error: &dyn std::fmt::Display| {
        format!("{} cannot be used: {error}", path.display())
    };
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
    let chain = found.map_err(|error| unread(certificate, &error))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| unread(key, &error))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, secret);
    let mut config = config.map_err(|error| unread(certificate, &error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
