//! Access to the HTTP pages by a token.

use std::fmt;
use std::sync::{Arc, RwLock};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

/// Secret that permits reading the pages of a service: visible ASCII characters. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Smallest and largest number of characters.
    pub const LENGTHS: std::ops::RangeInclusive<usize> = 16..=1024;

    /// Generates a token with 256 random bits.
    ///
    /// # Errors
    /// The operating system provides no entropy.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut bits = [0; 32];
        getrandom::fill(&mut bits)?;
        Ok(Self(URL_SAFE_NO_PAD.encode(bits)))
    }

    /// Reads a token from the content of a file, without the white space around it; none if it is too short or too long, or
    /// contains other characters than visible ASCII.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let is_valid = Self::LENGTHS.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_valid.then(|| Self(text.into()))
    }

    /// Returns the characters.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Decision about who may read the pages. Clones share the token, which can be replaced while the service runs.
#[derive(Clone, Debug)]
pub struct Access(Option<Arc<RwLock<blake3::Hash>>>);

impl Access {
    /// Permits everybody, for demonstrations.
    pub fn everybody() -> Self {
        Self(None)
    }

    /// Permits requests with the token.
    pub fn with_token(token: &Token) -> Self {
        Self(Some(Arc::new(RwLock::new(hash(token.as_str().as_bytes())))))
    }

    /// Replaces the token.
    pub fn replace_token(&self, token: &Token) {
        if let Some(Ok(mut expected)) = self.0.as_ref().map(|expected| expected.write()) {
            *expected = hash(token.as_str().as_bytes());
        }
    }

    /// Returns true if the headers of a request contain the token: as `Bearer TOKEN`, or as the password of `Basic`
    /// credentials with any user name.
    pub(super) fn permits(&self, headers: &HeaderMap) -> bool {
        let Some(expected) = &self.0 else { return true };
        let Ok(expected) = expected.read() else { return false };
        let mut all = headers.get_all(AUTHORIZATION).iter();
        let (Some(only), None) = (all.next(), all.next()) else { return false };
        // Hashes are compared in constant time, and have the same length whatever was sent.
        candidate(only.as_bytes()).is_some_and(|candidate| hash(&candidate) == *expected)
    }
}

fn hash(token: &[u8]) -> blake3::Hash {
    blake3::hash(token)
}

/// Returns the token that an `Authorization` header contains.
fn candidate(header: &[u8]) -> Option<Vec<u8>> {
    let space = header.iter().position(|byte| *byte == b' ')?;
    let (scheme, credentials) = (&header[..space], header[space..].trim_ascii());
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return Some(credentials.to_vec());
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    let credentials = STANDARD.decode(credentials).ok()?;
    let colon = credentials.iter().position(|byte| *byte == b':')?;
    Some(credentials[colon + 1..].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(access: &Access, headers: &[&str]) -> bool {
        let mut map = HeaderMap::new();
        for header in headers {
            map.append(AUTHORIZATION, header.parse().unwrap());
        }
        access.permits(&map)
    }

    fn basic(credentials: &str) -> String {
        format!("Basic {}", STANDARD.encode(credentials))
    }

    #[test]
    fn only_the_token_is_accepted() {
        let token = Token::generate().unwrap();
        let access = Access::with_token(&token);
        let token = token.as_str();
        let accepted = [
            format!("Bearer {token}"),
            format!("bearer  {token} "),
            basic(&format!(":{token}")),
            basic(&format!("any:{token}")),
        ];
        for header in accepted {
            assert!(permits(&access, &[&header]), "{header}");
            assert!(!permits(&access, &[&header, &header]), "two headers are ambiguous");
        }
        let shorter = &token[1..];
        let refused = [
            format!("Bearer {shorter}"),
            format!("Bearer {token}x"),
            format!("Digest {token}"),
            format!("Basic {token}"),
            token.to_owned(),
            basic(token),
            basic(&format!("{token}:")),
            basic(&format!("a:b:{token}")),
            "Bearer ".into(),
            "Basic".into(),
            "Basic ====".into(),
            String::new(),
        ];
        for header in refused {
            assert!(!permits(&access, &[&header]), "{header}");
        }
        assert!(!permits(&access, &[]));
        assert!(permits(&Access::everybody(), &[]));
    }

    #[test]
    fn replaced_token_is_refused() {
        let [old, new] = [(); 2].map(|()| Token::generate().unwrap());
        let access = Access::with_token(&old);
        access.clone().replace_token(&new);
        let permitted = [&old, &new].map(|token| permits(&access, &[&format!("Bearer {}", token.as_str())]));
        assert_eq!(permitted, [false, true]);
    }

    #[test]
    fn tokens_of_files_are_parsed_or_rejected() {
        let generated = Token::generate().unwrap();
        assert_eq!(Token::parse(&format!("{}\n", generated.as_str())), Some(generated));
        assert_eq!(Token::parse(&"x".repeat(16)).as_ref().map(Token::as_str), Some("xxxxxxxxxxxxxxxx"));
        for text in ["", "too short", &"x".repeat(15), &"x".repeat(1025), "sixteen characters", "sixteen-charact€rs"]
        {
            assert_eq!(Token::parse(text), None, "{text}");
        }
        assert_eq!(format!("{:?}", Token::parse(&"x".repeat(16))), "Some(Token)");
    }
}
