//! The common name in a certificate's subject.
//!
//! rustls hands certificates over as they came and the verifier does not export subjects. Only the way to the subject
//! is read, every length is checked against what is there, and whatever does not fit answers "no name".

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT: u8 = 0x06;
/// The optional version in front of the serial number.
const VERSION: u8 = 0xa0;
/// The texts that hold their bytes as they are: UTF-8, printable, Teletex and IA5.
const TEXTS: [u8; 4] = [0x0c, 0x13, 0x14, 0x16];
/// id-at-commonName, 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// The last common name of the subject of the certificate `der`.
pub(super) fn of(der: &[u8]) -> Option<String> {
    let (certificate, _) = element(der, SEQUENCE)?;
    let (mut to_be_signed, _) = element(certificate, SEQUENCE)?;
    if to_be_signed.first() == Some(&VERSION) {
        to_be_signed = any(to_be_signed)?.2;
    }
    // Serial number, algorithm, issuer and validity.
    for _ in 0..4 {
        to_be_signed = any(to_be_signed)?.2;
    }
    let (mut subject, _) = element(to_be_signed, SEQUENCE)?;
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

/// The contents of the element at the front of `der`, which must have this tag, and what follows it.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, contents, rest) = any(der)?;
    (found == tag).then_some((contents, rest))
}

/// Tag and contents of the element at the front of `der`, and what follows it.
fn any(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // A length of one to three bytes: no certificate is longer than 16 MiB.
        0x81..=0x83 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |len, digit| len << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    let (contents, rest) = rest.split_at_checked(len)?;
    Some((tag, contents, rest))
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
