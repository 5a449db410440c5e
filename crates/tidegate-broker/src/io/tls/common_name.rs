//! The common name in a certificate's subject.
//!
//! rustls hands certificates over as they came and the verifier does not export subjects. Only the way to the subject
//! is read, every length is checked against what is there, and whatever does not fit answers "no name".

use super::der::{OBJECT, SEQUENCE, SET, any, element, signed_part};

/// The texts that hold their bytes as they are: UTF-8, printable, Teletex and IA5.
const TEXTS: [u8; 4] = [0x0c, 0x13, 0x14, 0x16];
/// id-at-commonName, 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// The last common name of the subject of the certificate `der`.
pub(super) fn of(der: &[u8]) -> Option<String> {
    let mut subject = signed_part(der)?.subject;
    let mut name = None;
    while !subject.is_empty() {
        let (mut set, rest) = element(subject, SET)?;
        subject = rest;
        while !set.is_empty() {
            let (attribute, rest) = element(set, SEQUENCE)?;
            set = rest;
            let (kind, value) = element(attribute, OBJECT)?;
            if kind == COMMON_NAME {
                let (tag, text, _) = any(value)?;
                name = TEXTS.contains(&tag).then(|| std::str::from_utf8(text).ok()).flatten().or(name);
            }
        }
    }
    name.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(names: &[&str]) -> Vec<u8> {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "Org");
        for name in names {
            params.distinguished_name.push(rcgen::DnType::CommonName, *name);
        }
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn names_are_found() {
        assert_eq!(of(&certificate(&["sensor 7"])).as_deref(), Some("sensor 7"));
        assert_eq!(of(&certificate(&["caf\u{e9}"])).as_deref(), Some("caf\u{e9}"));
        assert_eq!(of(&certificate(&[])), None);
    }

    #[test]
    fn whatever_is_broken_has_no_name() {
        let der = certificate(&["sensor 7"]);
        for len in 0..der.len() {
            assert_eq!(of(&der[..len]), None);
        }
        for index in 0..der.len() {
            let mut broken = der.clone();
            broken[index] ^= 0xff;
            // It may still have a name, but finds its way out.
            let _ = of(&broken);
        }
    }
}
