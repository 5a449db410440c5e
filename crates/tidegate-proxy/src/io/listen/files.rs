//! The files that a proxy reads at its start, read without one.

use std::fs::File;
use std::path::Path;

use crate::config::{Certificate, Config, Upstream};
use crate::error::ProxyError;
use crate::io::conn::tickets::SharedTickets;
use crate::io::conn::tls;
use crate::io::upstream::Tls;

/// A file that a proxy would not start with.
#[derive(Debug)]
pub struct FileProblem {
    /// The key that names it, as in `proxy.certificate[0].key`.
    pub key: String,
    /// What is wrong.
    pub error: ProxyError,
}

/// What is wrong with the files that `config` names: of each certificate and of each upstream one thing, and one of the
/// ticket keys. A file that cannot be opened is left out with what depends on it: it may be another machine's, or another
/// user's.
#[must_use]
pub fn check_files(config: &Config) -> Vec<FileProblem> {
    let certificates = config.certificates.iter().enumerate().filter_map(|(at, one)| certificate(at, one));
    let upstreams = config.upstreams.iter().enumerate().filter_map(|(at, one)| upstream(at, one));
    certificates.chain(ticket_keys(config)).chain(upstreams).collect()
}

fn opens(file: &Path) -> bool {
    File::open(file).is_ok()
}

fn certificate(at: usize, given: &Certificate) -> Option<FileProblem> {
    if !opens(&given.cert) || !opens(&given.key) {
        return None;
    }
    let ocsp = given.ocsp.clone().filter(|file| opens(file));
    let error = tls::read(&Certificate { ocsp, ..given.clone() }, &mut Vec::new()).err()?;
    let key = match &error {
        ProxyError::Pem { path, .. } if *path == given.key => "key",
        ProxyError::Ocsp { .. } => "ocsp",
        _ => "cert",
    };
    Some(FileProblem { key: format!("proxy.certificate[{at}].{key}"), error })
}

fn ticket_keys(config: &Config) -> Option<FileProblem> {
    let files: Vec<_> = config.ticket_keys.iter().filter(|file| opens(file)).cloned().collect();
    let error = SharedTickets::load(&files).err()?;
    let place = match &error {
        // Of two that are the same, the later one.
        ProxyError::TicketKey { path, .. } => config.ticket_keys.iter().rposition(|file| file == path),
        _ => None,
    };
    Some(FileProblem { key: format!("proxy.ticket_keys[{}]", place.unwrap_or(0)), error })
}

fn upstream(at: usize, given: &Upstream) -> Option<FileProblem> {
    let settings = given.tls.as_ref()?;
    if !settings.files().all(|(_, file)| opens(file)) {
        return None;
    }
    let error = Tls::load(std::slice::from_ref(given), &[]).err()?;
    let key = match &error {
        ProxyError::Pem { path, .. } | ProxyError::Certificate { path, .. } => {
            settings.files().find(|(_, file)| file == path).map_or("", |(key, _)| key)
        }
        ProxyError::ServerName { .. } => "name",
        _ => "roots",
    };
    Some(FileProblem { key: format!("proxy.upstream[{at}].tls.{key}"), error })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use tidegate_runtime::config::Document;

    use super::*;

    /// A folder that goes away with its test.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("tidegate-files-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn put(&self, name: &str, content: impl AsRef<[u8]>) {
            std::fs::write(self.0.join(name), content).unwrap();
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            drop(std::fs::remove_dir_all(&self.0));
        }
    }

    #[test]
    fn files_that_do_not_go_together_are_found_and_those_that_are_not_here_are_not() {
        let folder = Folder::new();
        for name in ["a", "b"] {
            let made = rcgen::generate_simple_self_signed([format!("{name}.example")]).unwrap();
            folder.put(&format!("{name}.pem"), made.cert.pem());
            folder.put(&format!("{name}.key"), made.signing_key.serialize_pem());
        }
        folder.put("tickets", [7; 80]);
        folder.put("same", [7; 80]);
        folder.put("short", [1; 47]);
        folder.put("empty", "");
        let found = |certificates: &[[&str; 2]], tickets: &[&str], own: [&str; 2]| {
            let path = |name: &str| folder.0.join(name).display().to_string();
            let tickets: Vec<_> = tickets.iter().map(|name| path(name)).collect();
            let pair = |[cert, key]: &[&str; 2]| format!("cert = \"{}\"\nkey = \"{}\"\n", path(cert), path(key));
            let certificates: Vec<_> = certificates.iter().map(pair).collect();
            let certificates = certificates.join("[[proxy.certificate]]\n");
            let text = format!(
                "[proxy]\nticket_keys = {tickets:?}\n[[proxy.certificate]]\n{certificates}[[proxy.upstream]]\nname = \"u\"\n\
                 servers = [\"a.example:1\"]\n[proxy.upstream.tls]\nverify = false\n{}[[proxy.route]]\nupstream = \"u\"\n",
                pair(&own)
            );
            let config = Config::from_document(&Document::new("t.toml", text), 1).unwrap();
            check_files(&config).into_iter().map(|problem| problem.key).collect::<Vec<_>>()
        };
        let (good, none) = (["a.pem", "a.key"], ["none.pem", "none.key"]);
        assert!(found(&[good, ["b.pem", "b.key"]], &["tickets"], good).is_empty());
        assert!(found(&[none, ["a.pem", "none.key"]], &["none"], none).is_empty());
        let crossed = ["a.pem", "b.key"];
        let keys = ["proxy.certificate[1].cert", "proxy.ticket_keys[2]", "proxy.upstream[0].tls.cert"];
        assert_eq!(found(&[good, crossed], &["none", "tickets", "same"], crossed), keys);
        let keys = ["proxy.certificate[0].key", "proxy.certificate[1].cert", "proxy.ticket_keys[0]"];
        assert_eq!(found(&[["a.pem", "empty"], ["empty", "a.key"]], &["short"], none), keys);
    }
}
