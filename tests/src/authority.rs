//! Certificate authority of a test: signs certificates of servers and clients, and lists of revoked ones.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber,
    date_time_ymd,
};

/// Certificate authority, and the directory that its files go to.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// PEM file of the authority's certificate.
    pub ca_file: PathBuf,
    dir: PathBuf,
}

/// PEM files of a certificate and its key.
#[derive(Debug, Clone)]
pub struct IssuedFiles {
    /// Certificate.
    pub cert: PathBuf,
    /// Private key.
    pub key: PathBuf,
}

/// Kind and validity of a certificate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Validity {
    /// Valid now.
    Valid,
    /// Expired years ago.
    Expired,
}

impl Authority {
    /// Makes an authority whose files lie in `dir` and begin with `name`.
    pub fn new(dir: &Path, name: &str) -> Self {
        let key = KeyPair::generate().expect("key");
        let params = authority_params(name);
        let certificate = params.self_signed(&key).expect("signed");
        let ca_file = dir.join(format!("{name}.pem"));
        std::fs::write(&ca_file, certificate.pem()).expect("write");
        Self {
            issuer: Issuer::new(params, key),
            ca_file,
            dir: dir.to_owned(),
        }
    }

    /// Returns a certificate, in PEM, in which this authority vouches for the key of another one with this name.
    pub fn certify_key_of(&self, other: &Self, name: &str) -> String {
        let params = authority_params(name);
        let certificate = params.signed_by(other.issuer.key(), &self.issuer);
        certificate.expect("signed").pem()
    }

    /// Issues a certificate of a server with DNS names or addresses.
    pub fn issue_server(&self, file: &str, names: &[&str], validity: Validity) -> IssuedFiles {
        let subjects: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let params = CertificateParams::new(subjects).expect("names");
        self.issue(
            file,
            params,
            ExtendedKeyUsagePurpose::ServerAuth,
            validity,
            1,
        )
    }

    /// Issues a certificate of a client with a URI or DNS name.
    pub fn issue_client(
        &self,
        file: &str,
        name: &str,
        validity: Validity,
        serial: u64,
    ) -> IssuedFiles {
        let text = name.try_into().expect("ASCII");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.subject_alt_names = vec![match name.contains("://") {
            true => SanType::URI(text),
            false => SanType::DnsName(text),
        }];
        // The common name never counts.
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "spiffe://test/a/admin");
        self.issue(
            file,
            params,
            ExtendedKeyUsagePurpose::ClientAuth,
            validity,
            serial,
        )
    }

    /// Issues a valid certificate of the user of the tenant `a`.
    pub fn issue_user(&self, file: &str, serial: u64) -> IssuedFiles {
        self.issue_client(file, "spiffe://test/a/user", Validity::Valid, serial)
    }

    fn issue(
        &self,
        file: &str,
        mut params: CertificateParams,
        usage: ExtendedKeyUsagePurpose,
        validity: Validity,
        serial: u64,
    ) -> IssuedFiles {
        let key = KeyPair::generate().expect("key");
        params.extended_key_usages = vec![usage];
        params.serial_number = Some(SerialNumber::from(serial));
        if validity == Validity::Expired {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        }
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        let files = IssuedFiles {
            cert: self.dir.join(format!("{file}.crt")),
            key: self.dir.join(format!("{file}.key")),
        };
        install(&files.key, &key.serialize_pem(), 0o600);
        install(&files.cert, &certificate.pem(), 0o644);
        files
    }

    /// Writes a list of revoked serial numbers.
    pub fn revoke(&self, file: &Path, serials: &[u64]) {
        self.revoke_until(file, serials, 2099);
    }

    /// Writes a list of revoked serial numbers that the authority replaces at the begin of a year.
    pub fn revoke_until(&self, file: &Path, serials: &[u64], year: i32) {
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2026, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(year, 1, 1),
            crl_number: SerialNumber::from(serials.len() as u64 + 1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.issuer).expect("signed");
        install(file, &list.pem().expect("PEM"), 0o644);
    }
}

/// Makes the parameters of an authority's certificate.
fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, name);
    params
}

/// Writes a file under a temporary name and renames it, as orchestrators do.
pub fn install(path: &Path, text: &str, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    let new = path.with_extension("new");
    std::fs::write(&new, text).expect("write");
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(mode)).expect("mode");
    std::fs::rename(&new, path).expect("rename");
}
