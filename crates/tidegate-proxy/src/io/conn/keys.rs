//! Private keys, a copy for each kind of thread of a core.
//!
//! A signature with RSA takes a lock that belongs to the key, for the blinding of AWS-LC. The kernel may take the second
//! thread off the core while it holds that lock, and the first thread then spins for it: up to 1.6 s were measured. So no
//! key is shared by two kinds of threads.

use std::array;
use std::cell::Cell;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::sign::{Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};
use rustls_pki_types::{PrivateKeyDer, SubjectPublicKeyInfoDer};

/// What a thread of a core is for. Threads of one kind run at one priority.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ThreadKind {
    /// It serves connections.
    First,
    /// It computes handshakes when nothing else wants the core.
    Second,
    /// It stands in for the second.
    Third,
}

const KINDS: usize = 3;

thread_local! {
    static KIND: Cell<ThreadKind> = const { Cell::new(ThreadKind::First) };
}

/// The calling thread is of this `kind` from now on. A thread that says nothing is a first one.
pub(crate) fn set_thread_kind(kind: ThreadKind) {
    KIND.set(kind);
}

/// One key, with a copy for each kind of thread.
#[derive(Debug)]
struct Copies([Arc<dyn SigningKey>; KINDS]);

impl Copies {
    fn own(&self) -> &dyn SigningKey {
        &*self.0[KIND.get() as usize]
    }
}

impl SigningKey for Copies {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        self.own().choose_scheme(offered)
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        self.own().public_key()
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.own().algorithm()
    }
}

/// The key in `der`, to be used by threads of all kinds.
///
/// # Errors
/// If `provider` cannot read it.
pub(crate) fn load(der: &PrivateKeyDer<'_>, provider: &CryptoProvider) -> Result<Arc<dyn SigningKey>, Error> {
    let copy = |_| provider.key_provider.load_private_key(der.clone_key());
    let copies: [Result<Arc<dyn SigningKey>, Error>; KINDS] = array::from_fn(copy);
    let [first, second, third] = copies;
    Ok(Arc::new(Copies([first?, second?, third?])))
}

#[cfg(test)]
mod tests {
    use rustls::crypto::aws_lc_rs;

    use super::*;

    #[test]
    fn each_kind_of_thread_has_a_key_of_its_own() {
        let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        let der = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let copies: [Arc<dyn SigningKey>; KINDS] =
            array::from_fn(|_| aws_lc_rs::default_provider().key_provider.load_private_key(der.clone_key()).unwrap());
        let own = copies.each_ref().map(|copy| Arc::as_ptr(copy).cast::<()>());
        let keys = Arc::new(Copies(copies));
        let used = [ThreadKind::First, ThreadKind::Second, ThreadKind::Third].map(|kind| {
            let keys = Arc::clone(&keys);
            let look = move || {
                set_thread_kind(kind);
                std::ptr::from_ref(keys.own()).cast::<()>().addr()
            };
            std::thread::spawn(look).join().unwrap()
        });
        assert_eq!(used, own.map(<*const ()>::addr));
        assert!(used[0] != used[1] && used[1] != used[2] && used[0] != used[2], "no two share one");
        assert_eq!(KIND.get(), ThreadKind::First, "a thread that says nothing");
    }
}
