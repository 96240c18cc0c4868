//! Verification of JWT signatures with ring. The crate's own providers bring a second library of cryptography into the
//! daemon. Nothing is signed.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::signature::{Error as SignatureError, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: refuse_signing,
    verifier_factory: make_verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes this provider the one of the process.
pub(super) fn install() {
    // It fails if it was installed before.
    let _installed = PROVIDER.install_default();
}

/// Verifier of one algorithm with one key.
struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

fn refuse_signing(_algorithm: &Algorithm, _key: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    Err(ErrorKind::InvalidAlgorithm.into())
}

fn make_verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    if key.family() != algorithm.family()
        || elliptic_algorithm(*algorithm).is_none() && *algorithm != Algorithm::RS256
    {
        return Err(ErrorKind::InvalidAlgorithm.into());
    }
    Ok(Box::new(RingVerifier {
        algorithm: *algorithm,
        key: key.clone(),
    }))
}

/// Returns ring's algorithm for keys on elliptic curves; `None` for other ones.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "what is not listed is not accepted"
)]
fn elliptic_algorithm(algorithm: Algorithm) -> Option<&'static dyn VerificationAlgorithm> {
    match algorithm {
        Algorithm::ES256 => Some(&ECDSA_P256_SHA256_FIXED),
        Algorithm::EdDSA => Some(&ED25519),
        _ => None,
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(
        &self,
        message: &[u8],
        signature: &Vec<u8>,
    ) -> std::result::Result<(), SignatureError> {
        let verified = match (elliptic_algorithm(self.algorithm), self.key.kind()) {
            (Some(algorithm), DecodingKeyKind::SecretOrDer(key)) => {
                UnparsedPublicKey::new(algorithm, key).verify(message, signature)
            }
            (None, DecodingKeyKind::RsaModulusExponent { n, e }) => RsaPublicKeyComponents { n, e }
                .verify(&RSA_PKCS1_2048_8192_SHA256, message, signature),
            (Some(_), DecodingKeyKind::RsaModulusExponent { .. })
            | (None, DecodingKeyKind::SecretOrDer(_)) => Err(ring::error::Unspecified),
        };
        verified.map_err(|_| SignatureError::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}
