//! A request's path in the form that routes are found by.
//!
//! Servers take `/%6Cogin`, `//login` and `/./login` for `/login`, so a route of `/login`, with its limits, has to be for
//! all of them. Routes are looked up by one plain form of the path; what goes on is the path that came.

use std::borrow::Cow;
use std::fmt::Write as _;

/// A path in its plain form: characters that need no `%` have none, others have it in capitals; slashes that follow one
/// another are one; segments `.` are gone. An encoded slash stays one that separates nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlainPath<'a>(Cow<'a, str>);

/// A path leaves the root, or hides that it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Climbs;

impl<'a> PlainPath<'a> {
    /// The plain form of `path`, which begins with `/` and has no query. O(bytes); most paths are plain as they come, and
    /// these are looked at once and not copied.
    pub fn new(path: &'a str) -> Result<Self, Climbs> {
        if is_plain(path.as_bytes()) {
            return Ok(Self(Cow::Borrowed(path)));
        }
        if climbs(path) {
            return Err(Climbs);
        }
        let mut plain = String::with_capacity(path.len());
        for (byte, is_coded) in (Walk { rest: path.as_bytes() }) {
            if is_coded {
                write!(plain, "%{byte:02X}").expect("strings take every byte");
            } else {
                plain.push(char::from(byte));
            }
        }
        Ok(Self(Cow::Owned(plain)))
    }

    /// The plain form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What of `path` comes behind the first `length` bytes of its plain form.
pub(super) fn behind(path: &str, mut length: usize) -> Option<&str> {
    let mut walk = Walk { rest: path.as_bytes() };
    while length > 0 {
        let (_, is_coded) = walk.next()?;
        length = length.checked_sub(if is_coded { 3 } else { 1 })?;
    }
    path.get(path.len() - walk.rest.len()..)
}

/// Whether a byte stands in a route's path as it is.
pub(super) const fn stands(byte: u8) -> bool {
    byte.is_ascii_graphic()
        && !matches!(byte, b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' | b'#' | b'?')
}

/// Bytes that are the same in the plain form wherever they stand; but for slashes, and dots behind them.
static SAME: [bool; 256] = {
    let mut same = [false; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        same[byte as usize] = stands(byte) && byte != b'%';
        byte += 1;
    }
    same
};

/// True of most plain paths, and of no other.
fn is_plain(path: &[u8]) -> bool {
    let mut before = b'/';
    // Every path begins with the one slash that may follow this.
    path.iter().skip(usize::from(path.first() == Some(&b'/'))).all(|&byte| {
        let behind_slash = before == b'/' && matches!(byte, b'/' | b'.');
        before = byte;
        SAME[usize::from(byte)] && !behind_slash
    })
}

/// The bytes of a path's plain form; true beside those that are written with `%`.
struct Walk<'a> {
    rest: &'a [u8],
}

impl Iterator for Walk<'_> {
    type Item = (u8, bool);

    fn next(&mut self) -> Option<(u8, bool)> {
        let (&first, behind) = self.rest.split_first()?;
        let decoded = behind.get(..2).filter(|_| first == b'%').and_then(decode);
        let (byte, is_coded) = match decoded {
            // As it is it would separate, or begin a code.
            Some(byte) => (byte, !stands(byte) || matches!(byte, b'/' | b'%')),
            None => (first, !stands(first) || first == b'%'),
        };
        self.rest = if decoded.is_some() { &behind[2..] } else { behind };
        if byte == b'/' && !is_coded {
            self.skip();
        }
        Some((byte, is_coded))
    }
}

impl Walk<'_> {
    /// Behind a slash: goes on behind segments that are empty or `.`.
    fn skip(&mut self) {
        loop {
            self.rest = match self.rest {
                [b'/', behind @ ..] | [b'.', b'/', behind @ ..] | [b'%', b'2', b'e' | b'E', b'/', behind @ ..] => {
                    behind
                }
                [b'.'] | [b'%', b'2', b'e' | b'E'] => &[],
                _ => return,
            }
        }
    }
}

/// The byte of two hexadecimal digits.
fn decode(digits: &[u8]) -> Option<u8> {
    let digit = |digit: &u8| char::from(*digit).to_digit(16);
    u8::try_from(digit(digits.first()?)? << 4 | digit(digits.get(1)?)?).ok()
}

/// Whether a path has a segment `..`, plain or encoded, between slashes of either kind, plain or encoded. Servers that
/// resolve it would leave the route's prefix.
fn climbs(path: &str) -> bool {
    if !path.contains("..") && !path.contains('%') {
        return false;
    }
    let mut plain = path.to_ascii_lowercase().replace("%2e", ".");
    for slash in ["%2f", "%5c", "\\"] {
        plain = plain.replace(slash, "/");
    }
    plain.split('/').any(|segment| segment == ".." || segment.starts_with("..;"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_do_not_climb() {
        for path in ["/a/../b", "/..", "/%2e%2E/", "/a/.%2e", "/a/..;x/b", "/..%2Fx", "/a%2f..", "/a%5c%2e%2e/b"] {
            assert_eq!(PlainPath::new(path), Err(Climbs), "{path}");
        }
        for path in ["/", "/a..b/", "/...", "/.well-known/x", "/%20/", "/a/./b", "/a%2fb", "/%2e.x"] {
            assert!(PlainPath::new(path).is_ok(), "{path}");
        }
    }

    #[test]
    fn what_servers_take_for_one_path_is_one_path() {
        for (path, plain) in [
            ("/", "/"),
            ("", ""),
            ("*", "*"),
            ("/login", "/login"),
            ("/%6cogin", "/login"),
            ("/%6Cogin/", "/login/"),
            ("//login", "/login"),
            ("///login//x", "/login/x"),
            ("/./login", "/login"),
            ("/%2e/login", "/login"),
            ("/login/.", "/login/"),
            ("/.", "/"),
            ("//.//", "/"),
            ("/.well-known", "/.well-known"),
            ("/%2ewell-known", "/.well-known"),
            ("/a%2fb", "/a%2Fb"),
            ("/a%5cb", "/a%5Cb"),
            ("/%256cogin", "/%256cogin"),
            ("/%2541", "/%2541"),
            ("/a%28b%29", "/a(b)"),
            ("/{a}", "/%7Ba%7D"),
            ("/%7ba%7D", "/%7Ba%7D"),
            ("/a%20b", "/a%20b"),
            ("/caf\u{e9}", "/caf%C3%A9"),
            ("/caf%c3%a9", "/caf%C3%A9"),
            ("/broken%", "/broken%25"),
            ("/broken%4", "/broken%254"),
            ("/broken%%34%31", "/broken%2541"),
        ] {
            assert_eq!(PlainPath::new(path).unwrap().as_str(), plain, "{path}");
            assert_eq!(PlainPath::new(plain).unwrap().as_str(), plain, "a plain path stays as it is");
        }
    }

    #[test]
    fn usual_paths_are_not_copied() {
        for path in ["/", "/api/v1/users;a=1/x-y_z~.html", "/a:b@c!$&'()*+,=", "*", ""] {
            assert!(matches!(PlainPath::new(path), Ok(PlainPath(Cow::Borrowed(_)))), "{path}");
        }
    }

    #[test]
    fn what_comes_behind_a_prefix_is_as_it_came() {
        for (path, prefix, rest) in [
            ("//api//x%2fy", "/api", Some("//x%2fy")),
            ("/%61pi/x", "/api", Some("/x")),
            ("/./api", "/api", Some("")),
            ("//api/./x", "/api/", Some("x")),
            ("/caf\u{e9}/%41", "/caf%C3%A9", Some("/%41")),
            ("/a", "/api", None),
        ] {
            assert_eq!(behind(path, prefix.len()), rest, "{path}");
        }
    }
}
