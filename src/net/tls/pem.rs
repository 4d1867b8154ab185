//! Certificates and private keys from PEM files (RFC 7468), with errors that name the setting, the
//! file and the remedy.
//!
//! A private key may be in PKCS#8, PKCS#1 (RSA) or SEC1 (elliptic curves). An encrypted key is
//! refused: Weir has no way to get its password.

use std::io;
use std::path::{Path, PathBuf};

use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{Error, InconsistentKeys};

use super::provider;
use crate::net::bounded;

/// The largest file that is read, in bytes. All authorities of a system together are about 250 KB.
pub(crate) const MAX_BYTES: u64 = 4 << 20;

/// Mark of an encrypted key in a PEM section: in its first line (PKCS#8), or in the header below it
/// (PKCS#1 and SEC1 as OpenSSL writes them).
const ENCRYPTED: &[u8] = b"ENCRYPTED";

/// The path of a PEM file, and the setting that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PemFile {
    /// The name of the setting, for errors.
    pub setting: &'static str,
    pub path: PathBuf,
}

/// A file of certificates or keys that cannot be used, with the setting and the fix.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TlsError(String);

/// The name of a setting, and the path that it has.
pub type FileSetting<'a> = (&'static str, Option<&'a Path>);

impl PemFile {
    /// The file of this setting, if it names one.
    pub fn of((setting, path): FileSetting<'_>) -> Option<Self> {
        let path = path?.to_owned();
        Some(Self { setting, path })
    }

    /// The certificates in the file, of which there is at least one.
    ///
    /// # Errors
    /// The file cannot be read, or contains no certificate.
    pub fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.bytes()?).collect();
        match found {
            Ok(found) if !found.is_empty() => Ok(found),
            _ => Err(self.error(
                "holds no certificate",
                "write the path of a PEM file with one",
            )),
        }
    }

    /// The first private key in the file.
    fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        let bytes = self.bytes()?;
        PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| {
            let is_encrypted = bytes.windows(ENCRYPTED.len()).any(|part| part == ENCRYPTED);
            let remedy = if is_encrypted {
                "decrypt it with `openssl pkey -in FILE -out FILE`"
            } else {
                "write the path of a PEM file with one"
            };
            self.error("holds no private key that is not encrypted", remedy)
        })
    }

    /// The content of the file.
    ///
    /// # Errors
    /// The file cannot be read, or is too long.
    pub fn bytes(&self) -> Result<Vec<u8>, TlsError> {
        // The file of a command's flag may be a pipe, such as `<(...)` of a shell.
        let read = match self.setting.starts_with("--") {
            true => bounded::read_input,
            false => bounded::read,
        };
        let read = read(&self.path, MAX_BYTES).and_then(|bytes| {
            bytes.ok_or_else(|| io::Error::other(format!("it has more than {MAX_BYTES} bytes")))
        });
        read.map_err(|error| {
            self.error(
                &format!("cannot be read ({error})"),
                "write the path of a PEM file that Weir may read",
            )
        })
    }

    fn error(&self, why: &str, remedy: &str) -> TlsError {
        let (setting, path) = (self.setting, self.path.display());
        TlsError(format!("{setting}: {path} {why}; {remedy}"))
    }

    /// The error of a file whose content TLS cannot use.
    pub(crate) fn unusable(&self, error: &Error, remedy: &str) -> TlsError {
        self.error(&format!("cannot be used ({error})"), remedy)
    }
}

/// A certificate with its key: the identity of one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The certificate, followed by the intermediate certificates.
    pub certificate: PemFile,
    /// The private key of that certificate.
    pub key: PemFile,
}

impl Identity {
    /// The identity of two settings with their paths; `None` if neither is set.
    ///
    /// # Errors
    /// A certificate without its key, or a key without its certificate.
    pub fn try_new(
        certificate: FileSetting<'_>,
        key: FileSetting<'_>,
    ) -> Result<Option<Self>, TlsError> {
        let unpaired = |set: FileSetting<'_>, missing: FileSetting<'_>| {
            TlsError(format!(
                "{} needs {}: set both or neither",
                set.0, missing.0
            ))
        };
        match (PemFile::of(certificate), PemFile::of(key)) {
            (None, None) => Ok(None),
            (Some(_), None) => Err(unpaired(certificate, key)),
            (None, Some(_)) => Err(unpaired(key, certificate)),
            (Some(certificate), Some(key)) => Ok(Some(Self { certificate, key })),
        }
    }

    /// Reads both files. Blocks.
    ///
    /// # Errors
    /// A file cannot be used, or the key does not match the first certificate.
    pub fn read(&self) -> Result<CertifiedKey, TlsError> {
        let (chain, key) = (self.certificate.certificates()?, self.key.key()?);
        CertifiedKey::from_der(chain, key, &provider()).map_err(|error| match error {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                let setting = self.certificate.setting;
                let remedy = format!("write the key of the first certificate in {setting}");
                self.key.unusable(&error, &remedy)
            }
            Error::InvalidCertificate(_) => self
                .certificate
                .unusable(&error, "write a certificate of X.509, version 3"),
            error => self.key.unusable(
                &error,
                "write an RSA key of 2048 bits or more, or one of P-256, P-384 or Ed25519",
            ),
        })
    }
}
