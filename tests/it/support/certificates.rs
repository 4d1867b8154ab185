//! Certificate authorities and certificates of a test, as files in a temporary folder.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType,
    date_time_ymd,
};
use tempfile::TempDir;

/// A certificate authority.
pub struct Authority {
    name: &'static str,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub fn new(name: &'static str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key"))
            .expect("a certificate");
        Self { name, issuer }
    }

    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for these names (or addresses), and its key.
    pub fn issue(&self, names: &[&str]) -> Issued {
        self.sign(
            CertificateParams::new(
                names
                    .iter()
                    .map(|&name| name.to_owned())
                    .collect::<Vec<_>>(),
            )
            .expect("names"),
        )
    }

    /// An expired certificate for these names, and its key.
    pub fn issue_expired(&self, names: &[&str]) -> Issued {
        let mut params = CertificateParams::new(
            names
                .iter()
                .map(|&name| name.to_owned())
                .collect::<Vec<_>>(),
        )
        .expect("names");
        (params.not_before, params.not_after) =
            (date_time_ymd(2001, 1, 1), date_time_ymd(2002, 1, 1));
        self.sign(params)
    }

    /// A certificate for this key, as PEM.
    pub fn sign_for(&self, params: &CertificateParams, key: &KeyPair) -> String {
        params
            .signed_by(key, &self.issuer)
            .expect("a certificate")
            .pem()
    }

    /// A certificate that is also for this URI, and its key.
    pub fn issue_with_uri(&self, names: &[&str], uri: &str) -> Issued {
        let mut params = CertificateParams::new(
            names
                .iter()
                .map(|&name| name.to_owned())
                .collect::<Vec<_>>(),
        )
        .expect("names");
        params
            .subject_alt_names
            .push(SanType::URI(uri.try_into().expect("ASCII")));
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> Issued {
        params
            .distinguished_name
            .push(DnType::CommonName, format!("signed by {}", self.name));
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Issued {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}

/// A certificate for these names that is its own authority (CA:TRUE), as `openssl req -x509` makes
/// it, and its key.
pub fn self_signed(names: &[&str]) -> Issued {
    let mut params = CertificateParams::new(
        names
            .iter()
            .map(|&name| name.to_owned())
            .collect::<Vec<_>>(),
    )
    .expect("names");
    params
        .distinguished_name
        .push(DnType::CommonName, "self-signed");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate");
    Issued {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    }
}

/// A certificate and its key, as PEM.
pub struct Issued {
    pub certificate: String,
    pub key: String,
}

/// A temporary folder of files.
pub struct Files(TempDir);

impl Files {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The path of a file as text, for settings and arguments.
    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("UTF-8").to_owned()
    }

    /// Writes or replaces a file.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        replace(&self.path(name), text);
        self.path(name)
    }

    /// Writes `NAME.crt` and `NAME.key`.
    pub fn write_issued(&self, name: &str, issued: &Issued) {
        self.write(&format!("{name}.crt"), &issued.certificate);
        self.write(&format!("{name}.key"), &issued.key);
    }
}

/// Replaces a file atomically, as Kubernetes does, so that no process reads half of it.
fn replace(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, text)
        .and_then(|()| std::fs::rename(&beside, path))
        .expect("written");
}
