//! Whose a request seems to be, before it is read.

/// The value of the first whole `Host` field among `bytes`, the beginning of a connection, with no spaces around it.
///
/// Nothing is validated, and the request may mean another host: it is for what can be put right later. `None` if there is
/// none so far. O(bytes).
#[must_use]
pub fn glance_host(bytes: &[u8]) -> Option<&[u8]> {
    let mut lines = bytes.split_inclusive(|&byte| byte == b'\n');
    let _request_line = lines.next()?;
    loop {
        let line = lines.next()?.strip_suffix(b"\n")?.trim_ascii_end();
        if line.is_empty() {
            return None;
        }
        if let Some((name, value)) = line.split_at_checked(5)
            && name.eq_ignore_ascii_case(b"host:")
        {
            return Some(value.trim_ascii());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_whole_host_of_the_first_head_is_seen() {
        for (bytes, host) in [
            ("GET / HTTP/1.1\r\nHost: a.example:80\r\n\r\n", Some("a.example:80")),
            ("GET / HTTP/1.1\r\nAccept: */*\r\nhOsT:b \r\nHost: c\r\n\r\n", Some("b")),
            ("GET / HTTP/1.1\nHost:\n\n", Some("")),
            ("GET / HTTP/1.1\r\nHost: a.exam", None),
            ("GET / HTTP/1.1\r\nHosts: a\r\n\r\nHost: body", None),
            ("Host: a\r\n", None),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", None),
            ("", None),
        ] {
            assert_eq!(glance_host(bytes.as_bytes()), host.map(str::as_bytes), "{bytes:?}");
        }
    }
}
