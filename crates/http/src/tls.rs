//! TLS to HTTP servers, with rustls.
//!
//! If the process has chosen no provider of cryptography, ring is used. Certificates are always
//! verified.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::{ClientConfig, RootCertStore};
use seriatim::connection::tls::roots;

/// Returns the authorities in this file, or else those of the system. `is_needed` says whether it is
/// an error if the system has none. `option` is the name of the option for a file with authorities;
/// error texts use it.
///
/// # Errors
/// The text says that the file cannot be used, or that the system has no authorities.
pub(crate) fn authorities(
    ca_file: Option<&Path>,
    is_needed: bool,
    option: &str,
) -> Result<Arc<RootCertStore>, String> {
    match roots(ca_file, option) {
        Err(_) if ca_file.is_none() && !is_needed => Ok(Arc::new(RootCertStore::empty())),
        roots => roots,
    }
}

/// Returns the settings of TLS to HTTP servers, with HTTP/2 if the server offers it. `is_needed`
/// says whether it is an error if the system has no authorities. `option` is the name of the option
/// for a file with authorities; error texts use it.
///
/// # Errors
/// The text says which file cannot be used, or that the system has no authorities.
pub fn https(
    ca_file: Option<&Path>,
    is_needed: bool,
    option: &str,
) -> Result<ClientConfig, String> {
    trusting(authorities(ca_file, is_needed, option)?)
}

/// Returns the settings of TLS to servers whose certificates these authorities have signed.
///
/// # Errors
/// The provider of cryptography does not support the versions of TLS.
pub(crate) fn trusting(roots: Arc<RootCertStore>) -> Result<ClientConfig, String> {
    let provider = CryptoProvider::get_default()
        .map_or_else(|| Arc::new(ring::default_provider()), Arc::clone);
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
