//! Certificates for tests.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use tempfile::TempDir;

/// A certificate authority, with its files in a directory.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    dir: TempDir,
}

/// The files of a certificate and its key.
pub(crate) struct Certificate {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        let dir = tempfile::tempdir().expect("a directory");
        // Each authority has its own name.
        params
            .distinguished_name
            .push(DnType::CommonName, dir.path().display().to_string());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let own = params.self_signed(&key).expect("a certificate");
        std::fs::write(dir.path().join("ca.pem"), own.pem()).expect("written");
        Self {
            issuer: Issuer::new(params, key),
            dir,
        }
    }

    /// Returns the file with its own certificate.
    pub(crate) fn file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// Makes a certificate for a server or a client with this name.
    pub(crate) fn certify(&self, name: &str) -> Certificate {
        self.write(
            name,
            CertificateParams::new(vec![name.to_owned()]).expect("a name"),
        )
    }

    /// Makes a certificate that has expired.
    pub(crate) fn certify_until_2020(&self, name: &str) -> Certificate {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        (params.not_before, params.not_after) =
            (date_time_ymd(2019, 1, 1), date_time_ymd(2020, 1, 1));
        self.write("expired", params)
    }

    fn write(&self, file: &str, mut params: CertificateParams) -> Certificate {
        params.distinguished_name.push(DnType::CommonName, file);
        let key = KeyPair::generate().expect("a key");
        let made = params.signed_by(&key, &self.issuer).expect("a certificate");
        let path = |end: &str| self.dir.path().join(format!("{file}.{end}"));
        std::fs::write(path("pem"), made.pem()).expect("written");
        std::fs::write(path("key"), key.serialize_pem()).expect("written");
        Certificate {
            certificate: path("pem"),
            key: path("key"),
        }
    }
}

impl Certificate {
    /// Returns the options of a redis-server that accepts TLS at this port only.
    pub(crate) fn server_options(&self, port: u16, ca: &Path, clients: &str) -> Vec<String> {
        let text = |path: &Path| path.display().to_string();
        [
            ("--tls-port", port.to_string()),
            ("--tls-cert-file", text(&self.certificate)),
            ("--tls-key-file", text(&self.key)),
            ("--tls-ca-cert-file", text(ca)),
            ("--tls-auth-clients", clients.to_owned()),
        ]
        .into_iter()
        .flat_map(|(option, value)| [option.to_owned(), value])
        .collect()
    }
}
