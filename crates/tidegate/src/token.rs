//! The token that writes to the admin API and the console need.
//!
//! It is made once, at the first start, and kept in a file that only its owner can read. It is never logged and never
//! an argument, where other users of the machine would see it.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A secret; shown as dots.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token(String);

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("cannot use the token file {}", file.display())]
    Io {
        file: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the token file {} can be read by other users (mode {mode:03o})", file.display())]
    Exposed { file: PathBuf, mode: u32 },
    #[error("the token file {} does not hold a token", file.display())]
    NotAToken { file: PathBuf },
}

impl TokenError {
    pub(crate) fn remedy(&self) -> String {
        match self {
            Self::Io { .. } => {
                "point admin.token_file (or http_token_file) at a file that this user may write".to_owned()
            }
            Self::Exposed { file, .. } => {
                format!("chmod 600 {0}, or delete it: the next start makes a new one", file.display())
            }
            Self::NotAToken { file } => {
                format!("delete {}: the next start makes a new one of 64 hexadecimal digits", file.display())
            }
        }
    }
}

impl Token {
    /// A fresh one: 256 bits from the system.
    pub(crate) fn generate() -> io::Result<Self> {
        let mut bytes = [0; 32];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
        Ok(Self(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()))
    }

    /// The one in `file`, or a fresh one that is there from now on.
    pub(crate) fn load_or_create(file: &Path) -> Result<Self, TokenError> {
        let failed = |source| TokenError::Io { file: file.to_path_buf(), source };
        if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(file) {
            Ok(mut new) => {
                let token = Self::generate().map_err(failed)?;
                new.write_all(token.0.as_bytes()).and_then(|()| new.sync_all()).map_err(failed)?;
                Ok(token)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Self::load(file),
            Err(error) => Err(failed(error)),
        }
    }

    /// The one in `file`.
    pub(crate) fn load(file: &Path) -> Result<Self, TokenError> {
        let failed = |source| TokenError::Io { file: file.to_path_buf(), source };
        let opened = File::open(file).map_err(failed)?;
        let mode = opened.metadata().map_err(failed)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(TokenError::Exposed { file: file.to_path_buf(), mode });
        }
        let mut text = String::new();
        opened.take(1_024).read_to_string(&mut text).map_err(failed)?;
        let text = text.trim();
        // An operator may bring an own token; a short one can be guessed, an odd one cannot stand in a header.
        if text.len() < 32 || !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)) {
            return Err(TokenError::NotAToken { file: file.to_path_buf() });
        }
        Ok(Self(text.to_owned()))
    }

    /// The secret itself, for a header or the fragment of an address, which browsers do not send.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(...)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Folder;

    #[test]
    fn the_first_start_makes_a_token_that_only_its_owner_can_read() {
        let folder = Folder::new("token").unwrap();
        let file = folder.path().join("deep/admin.token");
        let token = Token::load_or_create(&file).unwrap();
        assert_eq!(token.reveal().len(), 64);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Token::load_or_create(&file).unwrap(), token);
        assert!(!format!("{token:?}").contains(token.reveal()));
        assert_ne!(Token::generate().unwrap(), token);
    }

    #[test]
    fn a_token_that_others_can_read_is_refused() {
        let folder = Folder::new("token-exposed").unwrap();
        let file = folder.path().join("admin.token");
        Token::load_or_create(&file).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let error = Token::load(&file).unwrap_err();
        assert!(error.to_string().ends_with("can be read by other users (mode 640)"), "{error}");
        assert!(error.remedy().starts_with("chmod 600"));
    }

    #[test]
    fn what_is_no_token_is_refused() {
        let folder = Folder::new("token-short").unwrap();
        let file = folder.path().join("admin.token");
        for text in ["", "secret", &"a b".repeat(20)] {
            OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&file)
                .and_then(|mut file| file.write_all(text.as_bytes()))
                .unwrap();
            assert!(matches!(Token::load_or_create(&file), Err(TokenError::NotAToken { .. })), "{text:?}");
        }
    }
}
