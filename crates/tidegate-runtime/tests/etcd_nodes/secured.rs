//! A server that speaks TLS only, wants a certificate of its clients, and has users.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_runtime::store::{EtcdOptions, EtcdTls, EtcdUser};

use super::EtcdNodes;

/// The user that Tidegate is, and its password.
pub(crate) const USER: &str = "tidegate";
const PASSWORD: &str = "of-tidegate";
const ROOT: &str = "root:of-root";

/// The certificates of an authority, a server and a client, in a folder.
#[derive(Clone)]
pub(crate) struct Certificates(PathBuf);

impl Certificates {
    fn make(folder: PathBuf) -> Self {
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("the temporary folder is writable");
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -sha256";
        openssl(&folder, &format!("req -x509 {key} -days 2 -subj /CN=ca -keyout ca.key -out ca.pem"));
        fs::write(folder.join("names"), "subjectAltName=DNS:localhost,IP:127.0.0.1\n").expect("the folder is ours");
        for name in ["server", "client"] {
            openssl(&folder, &format!("req {key} -subj /CN={name} -keyout {name}.key -out {name}.csr"));
            let sign = "-CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -sha256 -extfile names";
            openssl(&folder, &format!("x509 -req -in {name}.csr {sign} -out {name}.pem"));
        }
        Self(folder)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Lets an etcd speak TLS only, and want a certificate.
    pub(super) fn demand(&self, etcd: &mut Command) {
        etcd.arg("--cert-file").arg(self.file("server.pem")).arg("--key-file").arg(self.file("server.key"));
        etcd.arg("--client-cert-auth").arg("--trusted-ca-file").arg(self.file("ca.pem"));
    }

    /// What a client needs for that.
    pub(super) fn of_client(&self) -> EtcdTls {
        let identity = Some((self.file("client.pem"), self.file("client.key")));
        EtcdTls { authorities: Some(self.file("ca.pem")), identity }
    }
}

impl EtcdNodes {
    /// One node that speaks TLS only and wants a certificate. [`Self::admit_users`] gives it users.
    pub(crate) async fn start_secured(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("tidegate-certificates-{test}-{}", std::process::id()));
        Self::start_with(test, 1, Some(Certificates::make(folder))).await
    }

    /// From now on whoever asks is a user.
    pub(crate) fn admit_users(&self) {
        for words in [
            &["user", "add", ROOT][..],
            &["user", "grant-role", "root", "root"],
            &["role", "add", "limits"],
            &["role", "grant-permission", "limits", "--prefix=true", "readwrite", EtcdOptions::PREFIX],
            &["user", "add", &format!("{USER}:{PASSWORD}")],
            &["user", "grant-role", USER, "limits"],
            &["auth", "enable"],
        ] {
            self.etcdctl(words);
        }
    }

    /// Changes something about users, which ends all tokens.
    pub(crate) fn change_a_role(&self) {
        self.etcdctl(&["--user", ROOT, "role", "add", "another"]);
    }

    /// Options for that user, with `password` in a file.
    pub(crate) fn options_of_user(&self, password: &str) -> EtcdOptions {
        let file = self.folder.join("password");
        fs::write(&file, format!("{password}\n")).expect("the folder is ours");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("the file is ours");
        self.options().user(EtcdUser { name: USER.to_owned(), password_file: Some(file) })
    }

    /// The same with its true password.
    pub(crate) fn options_of_tidegate(&self) -> EtcdOptions {
        self.options_of_user(PASSWORD)
    }

    fn etcdctl(&self, words: &[&str]) {
        let certificates = self.certificates.as_ref().expect("it is secured");
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", self.endpoint(0)));
        for (flag, name) in [("--cacert", "ca.pem"), ("--cert", "client.pem"), ("--key", "client.key")] {
            command.arg(flag).arg(certificates.file(name));
        }
        let output = command.args(words).output().expect("`etcdctl` is missing: install Debian's package etcd-client");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

fn openssl(folder: &Path, words: &str) {
    let output = Command::new("openssl").args(words.split(' ')).current_dir(folder).output();
    let output = output.expect("`openssl` is missing: install Debian's package openssl");
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
}
