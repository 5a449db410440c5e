//! The `Date` of answers, made once in a second.

use std::cell::Cell;

use tidegate_runtime::clock;

/// A date such as `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, section 5.6.7).
pub(crate) type Date = [u8; 29];

const DAYS: [&[u8; 3]; 7] = [b"Sun", b"Mon", b"Tue", b"Wed", b"Thu", b"Fri", b"Sat"];
const MONTHS: [&[u8; 3]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

thread_local! {
    static CACHED: Cell<(u64, Date)> = const { Cell::new((u64::MAX, [0; 29])) };
}

/// Seconds since the beginning of 1970.
pub(crate) fn seconds() -> u64 {
    u64::try_from(clock::realtime_ns() / 1_000_000_000).unwrap_or(0)
}

/// The date now.
pub(crate) fn now() -> Date {
    let seconds = seconds();
    let (cached, date) = CACHED.get();
    if cached == seconds {
        return date;
    }
    let date = format(seconds);
    CACHED.set((seconds, date));
    date
}

/// The date `seconds` after the beginning of 1970, as text.
pub(crate) fn text(seconds: u64) -> String {
    String::from_utf8_lossy(&format(seconds)).into_owned()
}

/// The date `seconds` after the beginning of 1970.
fn format(seconds: u64) -> Date {
    let (days, within) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let mut date = *b"Thu, 01 Jan 1970 00:00:00 GMT";
    date[..3].copy_from_slice(DAYS[usize::try_from((days + 4) % 7).expect("below 7")]);
    two(&mut date[5..7], day);
    date[8..11].copy_from_slice(MONTHS[usize::try_from(month - 1).expect("below 12")]);
    two(&mut date[12..14], year / 100 % 100);
    two(&mut date[14..16], year % 100);
    two(&mut date[17..19], within / 3_600);
    two(&mut date[20..22], within / 60 % 60);
    two(&mut date[23..25], within % 60);
    date
}

fn two(digits: &mut [u8], number: u64) {
    let digit = |number: u64| b'0' + u8::try_from(number % 10).expect("a digit");
    digits[0] = digit(number / 10);
    digits[1] = digit(number);
}

/// Year, month and day of a day since 1970-01-01. Years begin in March, so that a leap day ends one.
fn civil(days: u64) -> (u64, u64, u64) {
    const ERA: u64 = 146_097; // Days of 400 years.
    let shifted = days + 719_468; // Days since 0000-03-01.
    let (era, day_of_era) = (shifted / ERA, shifted % ERA);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / (ERA - 1)) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// Days from 1970-01-01 to this one, which is no earlier.
pub(crate) fn days(year: u64, month: u64, day: u64) -> u64 {
    // As above: from 0000-03-01, years begin in March.
    let (year, from_march) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    year * 365 + year / 4 - year / 100 + year / 400 + (153 * from_march + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_827_696, "Tue, 29 Feb 2000 12:34:56 GMT"),
            (4_107_542_399, "Sun, 28 Feb 2100 23:59:59 GMT"),
        ] {
            assert_eq!(str::from_utf8(&format(seconds)).unwrap(), text);
        }
    }
}
