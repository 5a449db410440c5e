//! Clients that show a certificate of `tls_root_ca_file` itself.
//!
//! Go, and so nsqd, accepts a client's certificate that equals a configured root byte for byte: a self-signed pair whose
//! public half is both. The verifier of rustls refuses it, since such a certificate says that it is an authority's, or
//! is of X.509's version 1. Here equality is enough, as in Go within the certificate's dates and if it may be used by
//! clients, and the client must prove as always that it has the key.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};

use super::der::{Extension, OBJECT, SEQUENCE, any, element, extension, key_parts, signed_part};

const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// id-ce-extKeyUsage, 2.5.29.37.
const KEY_USAGES: &[u8] = &[0x55, 0x1d, 0x25];
/// anyExtendedKeyUsage, 2.5.29.37.0, and id-kp-clientAuth, 1.3.6.1.5.5.7.3.2.
const CLIENT_USAGES: [&[u8]; 2] = [&[0x55, 0x1d, 0x25, 0x00], &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x02]];

/// The verifier of `require-verify`: what authorities vouch for, and roots themselves.
#[derive(Debug)]
pub(super) struct RootsToo {
    authorities: Arc<dyn ClientCertVerifier>,
    roots: Vec<Root>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// A configured root that a client may show.
#[derive(Debug)]
struct Root {
    der: CertificateDer<'static>,
    /// Unix time in s, both included.
    valid: std::ops::RangeInclusive<i64>,
}

impl RootsToo {
    /// Accepts what `authorities` accepts, and `certificates` themselves where they may be a client's.
    pub(super) fn new(
        authorities: Arc<dyn ClientCertVerifier>,
        certificates: Vec<CertificateDer<'static>>,
        algorithms: WebPkiSupportedAlgorithms,
    ) -> Self {
        Self { authorities, roots: certificates.into_iter().filter_map(Root::of).collect(), algorithms }
    }

    fn root(&self, shown: &CertificateDer<'_>) -> Option<&Root> {
        self.roots.iter().find(|root| root.der.as_ref() == shown.as_ref())
    }
}

impl Root {
    /// `None` for one that cannot be a client's, or has no dates that can be read.
    fn of(der: CertificateDer<'static>) -> Option<Self> {
        let part = signed_part(&der)?;
        if !is_for_clients(part.extensions)? {
            return None;
        }
        let (tag, from, rest) = any(part.validity)?;
        let from = unix_s(tag, from)?;
        let (tag, to, _) = any(rest)?;
        let valid = from..=unix_s(tag, to)?;
        Some(Self { der, valid })
    }
}

/// Without a list of usages every use is fine.
fn is_for_clients(extensions: &[u8]) -> Option<bool> {
    let Extension::There(usages) = extension(extensions, KEY_USAGES)? else { return Some(true) };
    let mut usages = element(usages, SEQUENCE)?.0;
    while !usages.is_empty() {
        let (usage, rest) = element(usages, OBJECT)?;
        if CLIENT_USAGES.contains(&usage) {
            return Some(true);
        }
        usages = rest;
    }
    Some(false)
}

/// The time in `text`, `YYMMDDHHMMSSZ` or with four digits of the year, as RFC 5280 has it.
fn unix_s(tag: u8, text: &[u8]) -> Option<i64> {
    let text = text.strip_suffix(b"Z").filter(|text| text.iter().all(u8::is_ascii_digit))?;
    let number = |digits: &[u8]| digits.iter().fold(0, |number, digit| number * 10 + i64::from(digit - b'0'));
    let (year, rest) = match (tag, text.len()) {
        (UTC_TIME, 12) => {
            let year = number(&text[..2]);
            (if year < 50 { 2000 + year } else { 1900 + year }, &text[2..])
        }
        (GENERALIZED_TIME, 14) => (number(&text[..4]), &text[4..]),
        _ => return None,
    };
    let part = |index: usize| number(&rest[2 * index..2 * index + 2]);
    let (month, day) = (part(0), part(1));
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days since 1970 in the Gregorian calendar, with years that begin in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days =
        365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + (153 * month + 2) / 5 + day
            - 719_469;
    Some(((days * 24 + part(2)) * 60 + part(3)) * 60 + part(4))
}

impl ClientCertVerifier for RootsToo {
    fn offer_client_auth(&self) -> bool {
        self.authorities.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.authorities.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.authorities.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let Some(root) = self.root(shown) else { return self.authorities.verify_client_cert(shown, chain, now) };
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if now < *root.valid.start() {
            return Err(CertificateError::NotValidYet.into());
        }
        if now > *root.valid.end() {
            return Err(CertificateError::Expired.into());
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let Some(root) = self.root(shown) else {
            return self.authorities.verify_tls12_signature(message, shown, signed);
        };
        // What rustls calls does not read certificates of version 1, so the key is taken out here.
        let (algorithm, bits) =
            signed_part(&root.der).and_then(|part| key_parts(part.key)).ok_or(CertificateError::BadEncoding)?;
        let candidates = self.algorithms.mapping.iter().find(|(scheme, _)| *scheme == signed.scheme);
        let is_signed = candidates.into_iter().flat_map(|(_, candidates)| *candidates).any(|candidate| {
            candidate.public_key_alg_id().as_ref() == algorithm
                && candidate.verify_signature(bits, message, signed.signature()).is_ok()
        });
        if is_signed { Ok(HandshakeSignatureValid::assertion()) } else { Err(CertificateError::BadSignature.into()) }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let Some(root) = self.root(shown) else {
            return self.authorities.verify_tls13_signature(message, shown, signed);
        };
        let key = signed_part(&root.der).ok_or(CertificateError::BadEncoding)?.key;
        verify_tls13_signature_with_raw_key(message, &SubjectPublicKeyInfoDer::from(key), signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read_as_rfc_5280_writes_them() {
        assert_eq!(unix_s(UTC_TIME, b"700101000000Z"), Some(0));
        assert_eq!(unix_s(UTC_TIME, b"491231235959Z"), Some(2_524_607_999));
        assert_eq!(unix_s(UTC_TIME, b"500101000000Z"), Some(-631_152_000));
        assert_eq!(unix_s(GENERALIZED_TIME, b"20240229123456Z"), Some(1_709_210_096));
        assert_eq!(unix_s(GENERALIZED_TIME, b"99991231235959Z"), Some(253_402_300_799));
        for (tag, text) in
            [(UTC_TIME, "7001010000Z"), (UTC_TIME, "701301000000Z"), (GENERALIZED_TIME, "20240229123456"), (4, "x")]
        {
            assert_eq!(unix_s(tag, text.as_bytes()), None, "{text}");
        }
    }
}
