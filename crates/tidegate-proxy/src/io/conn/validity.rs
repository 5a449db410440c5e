//! Until when a certificate, or what its authority says of it, is valid.
//!
//! Times are seconds since 1970.

use std::str;

use crate::io::conn::der::element;
use crate::io::request::date;

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
/// Context-specific and constructed, number 0.
const FIRST: u8 = 0xa0;

/// The content of the next element, which is of the kind `tag`; `rest` goes on behind it.
pub(crate) fn next<'a>(rest: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    let (found, content, behind) = element(rest)?;
    *rest = behind;
    (found == tag).then_some(content)
}

/// What a certificate's signature is for, from the serial number on (RFC 5280, section 4.1).
pub(crate) fn signed(mut certificate: &[u8]) -> Option<&[u8]> {
    let mut signed = next(&mut next(&mut certificate, SEQUENCE)?, SEQUENCE)?;
    if signed.first() == Some(&FIRST) {
        next(&mut signed, FIRST)?;
    }
    Some(signed)
}

/// When a certificate ends.
pub(crate) fn end_of(certificate: &[u8]) -> Option<u64> {
    let mut signed = signed(certificate)?;
    next(&mut signed, INTEGER)?;
    // The kind of the signature, and the issuer.
    next(&mut signed, SEQUENCE)?;
    next(&mut signed, SEQUENCE)?;
    let (_, _, behind) = element(next(&mut signed, SEQUENCE)?)?;
    time(behind)
}

/// A time of DER: the first element is one, and is in UTC to the second (RFC 5280, section 4.1.2.5).
pub(crate) fn time(der: &[u8]) -> Option<u64> {
    let (tag, content, _) = element(der)?;
    let digits = str::from_utf8(content).ok()?.strip_suffix('Z')?;
    let (year, rest) = match tag {
        UTC_TIME if digits.len() == 12 => {
            let year: u64 = digits[..2].parse().ok()?;
            (if year < 50 { 2_000 + year } else { 1_900 + year }, &digits[2..])
        }
        GENERALIZED_TIME if digits.len() == 14 => (digits[..4].parse().ok()?, &digits[4..]),
        _ => return None,
    };
    let mut fields = [0; 5];
    for (field, at) in fields.iter_mut().zip((0..).step_by(2)) {
        *field = rest.get(at..at + 2)?.parse().ok()?;
    }
    let [month, day, hour, minute, second] = fields;
    let is_date = (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second <= 60;
    // What ended before 1970 has ended.
    let days = if year < 1970 { 0 } else { date::days(year, month, day) };
    is_date.then(|| ((days * 24 + hour) * 60 + minute) * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_both_forms_and_nothing_else_is_one() {
        for (tag, text, seconds) in [
            (0x17, "000229123456Z", Some(951_827_696)),
            (0x17, "500101000000Z", Some(0)),
            (0x18, "21000228235959Z", Some(4_107_542_399)),
            (0x18, "40960101000000Z", Some(67_090_118_400)),
            (0x18, "210002282359Z", None),
            (0x18, "20261301000000Z", None),
            (0x17, "2612312359+100Z", None),
            (0x02, "261231235959Z", None),
        ] {
            let der = [&[tag, u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
            assert_eq!(time(&der), seconds, "{text}");
        }
    }

    #[test]
    fn the_end_of_a_certificate_is_read_from_it() {
        let mut params = rcgen::CertificateParams::new(["a.example".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(2031, 2, 3);
        let key = rcgen::KeyPair::generate().unwrap();
        let made = params.self_signed(&key).unwrap();
        assert_eq!(end_of(made.der()), Some(1_927_843_200));
        assert_eq!(end_of(&made.der()[..40]), None);
    }
}
