//! The way through a certificate's DER to the few parts that rustls does not hand out.
//!
//! Every length is checked against what is there; whatever does not fit answers `None`.

pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;
pub(super) const OBJECT: u8 = 0x06;
const BOOLEAN: u8 = 0x01;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
/// The optional version in front of the serial number.
const VERSION: u8 = 0xa0;
/// The optional extensions at the end.
const EXTENSIONS: u8 = 0xa3;

/// Parts of the part of a certificate that its issuer signed. Each is the contents of its element.
pub(super) struct SignedPart<'a> {
    /// Two times.
    pub(super) validity: &'a [u8],
    /// Sets of attributes.
    pub(super) subject: &'a [u8],
    /// The public key with its algorithm, as a whole element.
    pub(super) key: &'a [u8],
    /// Extensions, each a sequence; empty in certificates of version 1.
    pub(super) extensions: &'a [u8],
}

/// The signed part of the certificate `der`.
pub(super) fn signed_part(der: &[u8]) -> Option<SignedPart<'_>> {
    let (certificate, _) = element(der, SEQUENCE)?;
    let (mut rest, _) = element(certificate, SEQUENCE)?;
    if rest.first() == Some(&VERSION) {
        rest = any(rest)?.2;
    }
    // Serial number, algorithm and issuer.
    for _ in 0..3 {
        rest = any(rest)?.2;
    }
    let (validity, rest) = element(rest, SEQUENCE)?;
    let (subject, from_key) = element(rest, SEQUENCE)?;
    let (_, mut rest) = element(from_key, SEQUENCE)?;
    let key = &from_key[..from_key.len() - rest.len()];
    let mut extensions: &[u8] = &[];
    while !rest.is_empty() {
        let (tag, contents, behind) = any(rest)?;
        if tag == EXTENSIONS {
            extensions = element(contents, SEQUENCE)?.0;
        }
        rest = behind;
    }
    Some(SignedPart { validity, subject, key, extensions })
}

/// An extension, or nothing where there may be one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Extension<'a> {
    There(&'a [u8]),
    Missing,
}

/// The value of the extension `wanted`.
pub(super) fn extension<'a>(mut extensions: &'a [u8], wanted: &[u8]) -> Option<Extension<'a>> {
    while !extensions.is_empty() {
        let (extension, rest) = element(extensions, SEQUENCE)?;
        extensions = rest;
        let (kind, mut value) = element(extension, OBJECT)?;
        if kind != wanted {
            continue;
        }
        if value.first() == Some(&BOOLEAN) {
            value = any(value)?.2;
        }
        return Some(Extension::There(element(value, OCTET_STRING)?.0));
    }
    Some(Extension::Missing)
}

/// Algorithm and bits of the public key `key`, as [`SignedPart::key`] gives it.
pub(super) fn key_parts(key: &[u8]) -> Option<(&[u8], &[u8])> {
    let (key, _) = element(key, SEQUENCE)?;
    let (algorithm, rest) = element(key, SEQUENCE)?;
    // The first octet counts the bits that the last one does not use; keys use all.
    let (0, bits) = element(rest, BIT_STRING)?.0.split_first().map(|(unused, bits)| (*unused, bits))? else {
        return None;
    };
    Some((algorithm, bits))
}

/// The contents of the element at the front of `der`, which must have this tag, and what follows it.
pub(super) fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, contents, rest) = any(der)?;
    (found == tag).then_some((contents, rest))
}

/// Tag and contents of the element at the front of `der`, and what follows it.
pub(super) fn any(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
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
