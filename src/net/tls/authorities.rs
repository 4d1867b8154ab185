//! The authorities whose certificates are trusted.

use tokio_rustls::rustls::RootCertStore;

use super::pem::{PemFile, TlsError};

/// The authorities in the file and no others; without a file those of the system, or Mozilla's if
/// the system has none. Blocks.
///
/// # Errors
/// The file cannot be used.
pub fn authorities(file: Option<&PemFile>) -> Result<RootCertStore, TlsError> {
    let Some(file) = file else {
        return Ok(of_the_system());
    };
    let mut roots = RootCertStore::empty();
    for certificate in file.certificates()? {
        let remedy =
            "write the certificates of the authorities that signed those of the other side";
        roots
            .add(certificate)
            .map_err(|error| file.unusable(&error, remedy))?;
    }
    Ok(roots)
}

fn of_the_system() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    // Some systems hold certificates that rustls cannot parse. They are left out.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_always_trusted_authorities() {
        assert!(!of_the_system().is_empty());
    }
}
