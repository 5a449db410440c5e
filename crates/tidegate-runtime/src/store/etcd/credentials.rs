//! What an etcd asks for before it serves: TLS, and a user with a password.
//!
//! A user's password is exchanged for a token, which goes with each request. etcd forgets tokens, after five minutes without
//! use by default and whenever users or roles change: then the password is shown again. It is read each time, so that a new
//! one needs no restart, and is never kept or logged.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use tonic::Status;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use super::messages::AuthenticateRequest;
use crate::store::error::StoreError;
use crate::store::etcd_options::{EtcdOptions, EtcdTls, EtcdUser, PASSWORD_VARIABLE};

/// Longest file of certificates that is read: a bundle of all public authorities has 250 KiB.
const CERTIFICATES_BYTES_MAX: u64 = 4 << 20;
/// Longest password.
const PASSWORD_BYTES_MAX: u64 = 1 << 10;

/// etcd's words for a token that it does not know any more. Nothing was begun. Source: its `rpctypes/error.go` and, of what
/// version 3.4 says in its own words, `auth/store.go`.
const TOKEN_GONE: [&str; 3] =
    ["etcdserver: invalid auth token", "etcdserver: revision of auth store is old", "auth: revision in header is old"];

/// Whether `status` says that the token is not good any more.
pub(super) fn is_of_token(status: &Status) -> bool {
    TOKEN_GONE.iter().any(|words| status.message().contains(words))
}

/// A token. It does not show itself.
pub(super) type Token = MetadataValue<Ascii>;

/// The user, if there is one, and the token that it has.
pub(super) struct Credentials {
    user: Option<EtcdUser>,
    token: Mutex<Option<Token>>,
}

impl Credentials {
    pub(super) fn new(user: Option<EtcdUser>) -> Self {
        Self { user, token: Mutex::new(None) }
    }

    /// The token, if there is one.
    pub(super) fn token(&self) -> Option<Token> {
        self.lock().clone()
    }

    /// What gets a token; `None` without a user.
    ///
    /// # Errors
    /// [`StoreError::Credentials`] if the password is not to be read.
    pub(super) fn request(&self) -> Result<Option<AuthenticateRequest>, StoreError> {
        let Some(user) = &self.user else { return Ok(None) };
        let password = password_of(user)?;
        Ok(Some(AuthenticateRequest { name: user.name.clone(), password }))
    }

    /// Keeps a token that etcd gave.
    pub(super) fn keep(&self, text: &str) -> Option<Token> {
        let mut token: Token = text.parse().ok()?;
        token.set_sensitive(true);
        *self.lock() = Some(token.clone());
        Some(token)
    }

    /// Gives up `token`, unless there is a newer one.
    pub(super) fn forget(&self, token: &Token) {
        let mut held = self.lock();
        if held.as_ref() == Some(token) {
            *held = None;
        }
    }

    /// Gives up whatever token there is.
    pub(super) fn forget_any(&self) {
        *self.lock() = None;
    }

    /// No panic happens while a token is exchanged.
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Token>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// The authorities that vouch for `https` nodes of `options`, and what vouches for this client.
///
/// # Errors
/// [`StoreError::Credentials`] if a file is not to be read.
pub(super) fn tls(options: &EtcdOptions) -> Result<ClientTlsConfig, StoreError> {
    let EtcdTls { authorities, identity } = options.tls_files();
    let tls = match authorities {
        Some(file) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(file, CERTIFICATES_BYTES_MAX)?)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    let Some((certificate, key)) = identity else { return Ok(tls) };
    let (certificate, key) = (read(certificate, CERTIFICATES_BYTES_MAX)?, read(key, CERTIFICATES_BYTES_MAX)?);
    Ok(tls.identity(Identity::from_pem(certificate, key)))
}

fn password_of(user: &EtcdUser) -> Result<String, StoreError> {
    let (place, text) = if let Some(file) = &user.password_file {
        (file.display().to_string(), secret(file)?)
    } else {
        let missing = |_| unusable(PASSWORD_VARIABLE, io::Error::new(io::ErrorKind::NotFound, "it is not set"));
        (PASSWORD_VARIABLE.to_owned(), std::env::var(PASSWORD_VARIABLE).map_err(missing)?)
    };
    // Editors end a file with a newline.
    let password = text.trim_end_matches(['\r', '\n']);
    let empty = || io::Error::new(io::ErrorKind::InvalidData, "it is empty");
    if password.is_empty() { Err(unusable(&place, empty())) } else { Ok(password.to_owned()) }
}

/// A text that no other user of the machine may read.
fn secret(file: &Path) -> Result<String, StoreError> {
    let failed = |source| unusable(&file.display().to_string(), source);
    let mode = std::fs::metadata(file).map_err(failed)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let found = format!("other users can read it (mode {mode:03o}): chmod 600");
        return Err(failed(io::Error::new(io::ErrorKind::PermissionDenied, found)));
    }
    let bytes = read(file, PASSWORD_BYTES_MAX)?;
    String::from_utf8(bytes).map_err(|_| failed(io::Error::new(io::ErrorKind::InvalidData, "it is no text")))
}

fn read(file: &Path, most: u64) -> Result<Vec<u8>, StoreError> {
    let failed = |source| unusable(&file.display().to_string(), source);
    let mut bytes = Vec::new();
    File::open(file).map_err(failed)?.take(most).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn unusable(place: &str, source: io::Error) -> StoreError {
    StoreError::Credentials { place: place.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    #[test]
    fn a_password_is_read_from_a_file_that_only_its_owner_reads() {
        let file = std::env::temp_dir().join(format!("tidegate-etcd-password-{}", std::process::id()));
        let user = EtcdUser { name: "tidegate".to_owned(), password_file: Some(file.clone()) };
        let credentials = Credentials::new(Some(user));
        fs::write(&file, "geheim\n").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        let error = credentials.request().unwrap_err();
        assert!(std::error::Error::source(&error).unwrap().to_string().contains("mode 644"), "{error}");
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        let request = credentials.request().unwrap().unwrap();
        assert_eq!(request.password, "geheim");
        assert!(!format!("{request:?} {credentials:?}").contains("geheim"));
        fs::write(&file, "\n").unwrap();
        assert!(matches!(credentials.request(), Err(StoreError::Credentials { .. })));
        fs::remove_file(&file).unwrap();
        assert!(matches!(credentials.request(), Err(StoreError::Credentials { .. })));
    }

    #[test]
    fn a_token_is_kept_until_it_is_given_up_and_does_not_show_itself() {
        let credentials = Credentials::new(None);
        assert!(credentials.request().unwrap().is_none());
        let old = credentials.keep("abc.7").unwrap();
        let new = credentials.keep("def.8").unwrap();
        credentials.forget(&old);
        assert_eq!(credentials.token(), Some(new.clone()));
        assert!(!format!("{new:?}").contains("def"));
        credentials.forget(&new);
        assert_eq!(credentials.token(), None);
        assert!(credentials.keep("no\ntoken").is_none());
    }

    #[test]
    fn a_token_that_is_gone_is_told_from_a_user_without_permission() {
        assert!(is_of_token(&Status::unauthenticated("etcdserver: invalid auth token")));
        assert!(is_of_token(&Status::unknown("auth: revision in header is old")));
        assert!(!is_of_token(&Status::permission_denied("etcdserver: permission denied")));
    }
}
