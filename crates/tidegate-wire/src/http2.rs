//! What a server of HTTP/2 begins with: its SETTINGS. RFC 9113 §3.4 and §6.5, RFC 8441 §3.

/// Bytes of a frame's header.
const HEADER: usize = 9;
/// Bytes of one setting: its number and its value.
const SETTING: usize = 6;
/// The type of a SETTINGS frame.
const SETTINGS: u8 = 4;
/// The flag of a SETTINGS frame that only acknowledges.
const ACK: u8 = 1;
/// `SETTINGS_ENABLE_CONNECT_PROTOCOL`.
const ENABLE_CONNECT_PROTOCOL: u16 = 8;

/// Reads the first frame of a server as it comes, in pieces of any size. O(1) memory, whatever the frame's length.
#[derive(Clone, Copy, Debug, Default)]
pub struct FirstSettings {
    header: [u8; HEADER],
    setting: [u8; SETTING],
    /// Bytes that were read.
    at: usize,
    connect: bool,
    done: bool,
}

impl FirstSettings {
    /// Reads more bytes of the server. Once, when the frame is whole: whether the server takes extended CONNECT. A server
    /// whose first frame is another one takes nothing.
    pub fn read(&mut self, bytes: &[u8]) -> Option<bool> {
        for &byte in bytes {
            if self.done {
                return None;
            }
            self.push(byte);
            if self.done {
                return Some(self.connect);
            }
        }
        None
    }

    fn push(&mut self, byte: u8) {
        if self.at < HEADER {
            self.header[self.at] = byte;
        } else {
            let place = (self.at - HEADER) % SETTING;
            self.setting[place] = byte;
            if place == SETTING - 1 {
                let [high, low, value @ ..] = self.setting;
                if u16::from_be_bytes([high, low]) == ENABLE_CONNECT_PROTOCOL {
                    self.connect = u32::from_be_bytes(value) == 1;
                }
            }
        }
        self.at += 1;
        let [first, second, third, kind, flags, ..] = self.header;
        let length = u32::from_be_bytes([0, first, second, third]);
        let is_whole = self.at - HEADER.min(self.at) == length as usize;
        self.done = self.at >= HEADER && (is_whole || kind != SETTINGS || flags & ACK != 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, settings: &[(u16, u32)]) -> Vec<u8> {
        let length = u8::try_from(settings.len() * SETTING).unwrap();
        let mut bytes = vec![0, 0, length, kind, flags, 0, 0, 0, 0];
        for (number, value) in settings {
            bytes.extend_from_slice(&number.to_be_bytes());
            bytes.extend_from_slice(&value.to_be_bytes());
        }
        bytes
    }

    #[test]
    fn a_server_says_once_whether_it_takes_extended_connect_however_its_bytes_are_cut() {
        for (first, takes) in [
            (frame(SETTINGS, 0, &[(3, 100), (8, 1), (4, 65_535)]), true),
            (frame(SETTINGS, 0, &[(8, 0)]), false),
            (frame(SETTINGS, 0, &[(8, 1), (8, 0)]), false),
            (frame(SETTINGS, 0, &[(1, 1)]), false),
            (frame(SETTINGS, 0, &[]), false),
            (frame(SETTINGS, ACK, &[]), false),
            (frame(6, 0, &[(8, 1)]), false),
        ] {
            let mut all = first.clone();
            all.extend_from_slice(&frame(SETTINGS, 0, &[(8, 1)]));
            for cut in 0..all.len() {
                let mut reader = FirstSettings::default();
                let told: Vec<bool> = [&all[..cut], &all[cut..]].iter().filter_map(|part| reader.read(part)).collect();
                assert_eq!(told, [takes], "{first:?} cut at {cut}");
            }
            let mut reader = FirstSettings::default();
            assert_eq!(reader.read(&first[..HEADER - 1]), None, "its header is cut");
        }
    }
}
