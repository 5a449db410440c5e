//! Names that a source makes up: another in each request, or hello.

use super::config::Source;

/// Digits of a name that are counted: those that it begins with.
pub(super) const DIGITS: usize = 6;

/// Where a made-up name stands in bytes that are sent again and again, and which comes next.
#[derive(Debug)]
pub(super) struct MadeUp {
    count: u32,
    next: u32,
    places: Vec<usize>,
}

impl MadeUp {
    /// For `bytes` of `source`; one that makes up no names changes nothing.
    pub(super) fn new(source: &Source, bytes: &[u8]) -> Self {
        let name = source.name.as_bytes();
        let makes_up = source.made_up_names > 0;
        let places = bytes.windows(name.len()).enumerate().filter(|(_, window)| makes_up && *window == name);
        Self { count: source.made_up_names, next: 0, places: places.map(|(at, _)| at).collect() }
    }

    /// Puts the next name into `bytes`.
    pub(super) fn turn(&mut self, bytes: &mut [u8]) {
        if self.count == 0 {
            return;
        }
        for &at in &self.places {
            let mut rest = self.next;
            for digit in bytes[at..at + DIGITS].iter_mut().rev() {
                *digit = b'0' + u8::try_from(rest % 10).expect("a digit");
                rest /= 10;
            }
        }
        self.next = (self.next + 1) % self.count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_up_in_turn_wherever_they_stand() {
        let source = Source { name: "000000.example".into(), made_up_names: 2, ..Source::default() };
        let mut bytes = b"Host: 000000.example\r\nX: 000000.example\r\nY: 000000\r\n".to_vec();
        let mut made_up = MadeUp::new(&source, &bytes);
        for wanted in ["000000", "000001", "000000"] {
            made_up.turn(&mut bytes);
            let text = format!("Host: {wanted}.example\r\nX: {wanted}.example\r\nY: 000000\r\n");
            assert_eq!(bytes, text.as_bytes());
        }
        let honest = Source { made_up_names: 0, ..source };
        let mut same = bytes.clone();
        MadeUp::new(&honest, &same).turn(&mut same);
        assert_eq!(same, bytes);
    }
}
