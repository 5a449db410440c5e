//! What an authority says of a certificate, to be stapled to it.
//!
//! Clients verify it. Here it is only made sure that the file is such an answer, one about this certificate, and until
//! when it is valid: else each handshake would fail at clients that look at it. Structures are those of RFC 6960
//! §4.2.1.

use std::fs;
use std::path::Path;

use super::validity::{self, next};
use crate::error::OcspProblem;
use crate::io::conn::der::element;

/// Answers with the certificates of those who sign have some kilobytes.
const BYTES_MAX: usize = 64 << 10;

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
const OBJECT: u8 = 0x06;
const ENUMERATED: u8 = 0x0a;
/// Context-specific and constructed, number 0.
const FIRST: u8 = 0xa0;
/// `id-pkix-ocsp-basic`, 1.3.6.1.5.5.7.48.1.1.
const BASIC: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01, 0x01];

/// An answer, and until when it is valid; for good if it does not say.
#[derive(Debug)]
pub(crate) struct Staple {
    pub(crate) response: Vec<u8>,
    pub(crate) until: Option<u64>,
}

/// Reads the answer about `certificate`, both in DER.
pub(crate) fn read(path: &Path, certificate: &[u8]) -> Result<Staple, OcspProblem> {
    let response = fs::read(path).map_err(OcspProblem::Unreadable)?;
    if response.len() > BYTES_MAX {
        return Err(OcspProblem::TooLarge { most: BYTES_MAX });
    }
    match status(&response).ok_or(OcspProblem::Malformed)? {
        0 => {}
        status => return Err(OcspProblem::Failed { status }),
    }
    let answers = answers(&response).ok_or(OcspProblem::Malformed)?;
    let own = validity::signed(certificate).and_then(|mut signed| next(&mut signed, INTEGER));
    let found = answers.iter().find(|(serial, _)| Some(*serial) == own).map(|(_, until)| *until);
    found.map(|until| Staple { response, until }).ok_or(OcspProblem::OtherCertificate)
}

/// What the authority says of its answer: 0 if there is one.
fn status(mut response: &[u8]) -> Option<u8> {
    let mut content = next(&mut response, SEQUENCE)?;
    match next(&mut content, ENUMERATED)? {
        [status] if response.is_empty() => Some(*status),
        _ => None,
    }
}

/// The serial numbers of the certificates that an answer is about, and until when it is valid for each.
fn answers(mut response: &[u8]) -> Option<Vec<(&[u8], Option<u64>)>> {
    let mut content = next(&mut response, SEQUENCE)?;
    next(&mut content, ENUMERATED)?;
    let mut bytes = next(&mut next(&mut content, FIRST)?, SEQUENCE)?;
    if next(&mut bytes, OBJECT)? != BASIC {
        return None;
    }
    let mut signed = next(&mut next(&mut next(&mut bytes, OCTETS)?, SEQUENCE)?, SEQUENCE)?;
    // A version, if there is one, the responder, and when this was made.
    if signed.first() == Some(&FIRST) {
        next(&mut signed, FIRST)?;
    }
    let (_, _, mut signed) = element(signed)?;
    next(&mut signed, 0x18)?;
    let mut rest = next(&mut signed, SEQUENCE)?;
    let mut answers = Vec::new();
    while !rest.is_empty() {
        let mut answer = next(&mut rest, SEQUENCE)?;
        let mut id = next(&mut answer, SEQUENCE)?;
        next(&mut id, SEQUENCE)?;
        next(&mut id, OCTETS)?;
        next(&mut id, OCTETS)?;
        // What it says, since when, and, if there is to be a newer one, until when.
        let (_, _, mut times) = element(answer)?;
        next(&mut times, 0x18)?;
        let until = match times.first() {
            Some(&FIRST) => Some(validity::time(next(&mut times, FIRST)?)?),
            _ => None,
        };
        answers.push((next(&mut id, INTEGER)?, until));
    }
    Some(answers)
}
