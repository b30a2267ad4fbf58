//! What is read of a certificate: the name it proves, and when it ends.
//!
//! Whether it can be trusted was decided before, by rustls. The name becomes an identity's
//! (`gapless_auth`): the common name of the subject, else the first DNS name.

use std::time::Duration;

use x509_cert::Certificate;
use x509_cert::der::asn1::{PrintableStringRef, Utf8StringRef};
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::{Any, Decode, Error};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// The common name, in a subject.
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// When a certificate ends, since 1970.
///
/// # Errors
/// When the bytes are not a certificate.
pub fn expires(der: &[u8]) -> Result<Duration, Error> {
    let certificate = Certificate::from_der(der)?;
    Ok(certificate.tbs_certificate.validity.not_after.to_unix_duration())
}

/// The name in a certificate, if it has one.
pub fn name(der: &[u8]) -> Option<String> {
    let certificate = Certificate::from_der(der).ok()?.tbs_certificate;
    let parts = certificate.subject.0.iter().flat_map(|part| part.0.iter());
    let common = parts.filter(|part| part.oid == COMMON_NAME).find_map(|part| text(&part.value));
    common.or_else(|| {
        let (_, names) = certificate.get::<SubjectAltName>().ok()??;
        names.0.iter().find_map(|name| match name {
            GeneralName::DnsName(name) => Some(name.as_str().to_owned()),
            _ => None,
        })
    })
}

/// The two kinds of text that are written today.
fn text(value: &Any) -> Option<String> {
    let utf8 = value.decode_as::<Utf8StringRef<'_>>().map(|text| text.as_str().to_owned());
    let text = utf8.or_else(|_| {
        value.decode_as::<PrintableStringRef<'_>>().map(|text| text.as_str().to_owned())
    });
    text.ok().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    fn certificate(common: Option<&str>, names: &[&str]) -> Vec<u8> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = DistinguishedName::new();
        if let Some(common) = common {
            params.distinguished_name.push(DnType::CommonName, common);
        }
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn the_common_name_counts_and_without_it_the_first_dns_name() {
        assert_eq!(name(&certificate(Some("shop ü"), &["a.example"])).as_deref(), Some("shop ü"));
        assert_eq!(name(&certificate(None, &["a.example", "b"])).as_deref(), Some("a.example"));
        assert_eq!(name(&certificate(None, &["10.0.0.1"])), None);
        assert_eq!(name(&certificate(Some(""), &[])), None);
    }

    #[test]
    fn bytes_that_are_no_certificate_have_no_name_and_no_end() {
        let whole = certificate(Some("shop"), &["a.example"]);
        assert!(expires(&whole).is_ok());
        for cut in 0..whole.len() {
            assert_eq!(name(&whole[..cut]), None);
            assert!(expires(&whole[..cut]).is_err());
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0xff;
            // Whatever it says then, it is an answer.
            let _ = (name(&changed), expires(&changed));
        }
    }
}
