//! Session descriptions as text: candidates are taken out of them, and put in.
//!
//! str0m gets a peer's candidates one by one, so that one that it does not know (TCP, multicast
//! DNS) is skipped and does not spoil the description; ours go out as they are found.

const CANDIDATE: &str = "a=candidate:";
const END: &str = "a=end-of-candidates";

/// A description without candidates, and those.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Parts {
    pub sdp: String,
    /// The values of the `a=candidate` lines, without `a=`.
    pub candidates: Vec<String>,
    pub is_complete: bool,
}

/// Take a description apart.
pub fn parts(sdp: &str) -> Parts {
    let mut found = Parts::default();
    for line in sdp
        .lines()
        .map(str::trim_end)
        .filter(|line| !line.is_empty())
    {
        if line.starts_with(CANDIDATE) {
            found.candidates.push(line["a=".len()..].to_owned());
        } else if line == END {
            found.is_complete = true;
        } else {
            found.sdp.push_str(line);
            found.sdp.push_str("\r\n");
        }
    }
    found
}

/// Return a description of one section with candidates at its end.
pub fn with_candidates(sdp: &str, candidates: &[String], is_complete: bool) -> String {
    let mut whole = sdp.to_owned();
    for candidate in candidates {
        whole.push_str("a=");
        whole.push_str(candidate);
        whole.push_str("\r\n");
    }
    if is_complete {
        whole.push_str(END);
        whole.push_str("\r\n");
    }
    whole
}

/// Return the username fragment of a description (RFC 8839, section 5.4).
pub fn ufrag(sdp: &str) -> Option<&str> {
    sdp.lines()
        .find_map(|line| line.strip_prefix("a=ice-ufrag:"))
        .map(str::trim_end)
}

/// Return the username fragment that a candidate says it belongs to.
pub fn candidate_ufrag(line: &str) -> Option<&str> {
    let mut words = line.split_ascii_whitespace();
    words.find(|word| *word == "ufrag")?;
    words.next()
}

/// Return a candidate's line as belonging to `ufrag`.
pub fn candidate_of(line: &str, ufrag: &str) -> String {
    let bare = line.split(" ufrag ").next().unwrap_or(line);
    format!("{bare} ufrag {ufrag}")
}

/// Return the value of a candidate's line however it is written, with `a=` or without.
pub fn candidate_value(line: &str) -> &str {
    let line = line.trim();
    line.strip_prefix("a=").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SDP: &str =
        "v=0\r\nm=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\na=ice-ufrag:ab\r\n";
    const LINE: &str = "candidate:1 1 udp 1 192.0.2.1 9 typ host ufrag ab";

    #[test]
    fn what_is_put_in_is_taken_out() {
        let whole = with_candidates(SDP, &[LINE.to_owned()], true);
        let found = parts(&whole);
        assert_eq!(found.sdp, SDP);
        assert_eq!(found.candidates, [LINE]);
        assert!(found.is_complete);
        assert_eq!(ufrag(&whole), Some("ab"));
    }

    #[test]
    fn a_candidate_belongs_to_one_generation() {
        assert_eq!(candidate_ufrag(LINE), Some("ab"));
        assert_eq!(
            candidate_ufrag("candidate:1 1 udp 1 192.0.2.1 9 typ host"),
            None
        );
        assert!(candidate_of(LINE, "cd").ends_with("typ host ufrag cd"));
        assert_eq!(candidate_value(" a=candidate:1\r\n"), "candidate:1");
    }
}
