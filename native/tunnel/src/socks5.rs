//! The server's side of SOCKS5 (RFC 1928) with names and passwords (RFC 1929), without I/O: the
//! rules of `fairlead_tunnel.socks5`, the reference in Python.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use aws_lc_rs::constant_time::verify_slices_are_equal;

use crate::frames::MAX_TARGET_BYTES;

const VERSION: u8 = 5;
const PASSWORD_VERSION: u8 = 1;
const CONNECT: u8 = 1;
const NO_METHOD: u8 = 0;
const PASSWORD: u8 = 2;
const UNACCEPTABLE: u8 = 0xFF;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;
const MOST_NAME_BYTES: usize = 253;
const OWN_NAMES: [&str; 4] = ["localhost", "sandbox", "127.0.0.1", "::1"];

/// What a request is answered with here (RFC 1928, section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    Succeeded = 0,
    HostUnreachable = 4,
    CommandUnsupported = 7,
    AddressTypeUnsupported = 8,
}

/// Return the answer to a request; the address that was bound over there is not told.
pub fn encode_reply(reply: Reply) -> [u8; 10] {
    [VERSION, reply as u8, 0, IPV4, 0, 0, 0, 0, 0, 0]
}

/// The name and password that clients must have.
#[derive(Clone)]
pub struct Credentials {
    user: Vec<u8>,
    password: Vec<u8>,
}

impl Credentials {
    /// Make them; None: one of them has not 1 to 255 bytes.
    pub fn new(user: Vec<u8>, password: Vec<u8>) -> Option<Self> {
        let fits = |text: &[u8]| (1..=255).contains(&text.len());
        (fits(&user) && fits(&password)).then_some(Credentials { user, password })
    }

    /// Say whether they are these, in a time that tells nothing of either but its length.
    fn matches(&self, user: &[u8], password: &[u8]) -> bool {
        let is_user = verify_slices_are_equal(&self.user, user).is_ok();
        let is_password = verify_slices_are_equal(&self.password, password).is_ok();
        is_user & is_password
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Credentials")
    }
}

/// What has become of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It wants to be connected to a target, which is a channel's label.
    Asked(String),
    /// It was refused, or speaks something else: close once the answer is sent. Why, in a sentence.
    Refused(String),
}

/// The part of a message that comes next, and what is known so far.
enum Step {
    Greeting,
    Methods,
    PasswordVersion,
    UserLength,
    User,
    PasswordLength { user: Vec<u8> },
    Password { user: Vec<u8> },
    Request,
    NameLength { command: u8 },
    Address { command: u8, kind: u8 },
    Port { command: u8, host: String },
    Over,
}

/// One connection of a client; with credentials it has to show them, else it shows nothing.
///
/// It keeps all that it was given: at most 1031 bytes, and what the last `receive` brought.
pub struct Socks5Server {
    credentials: Option<Credentials>,
    step: Step,
    wanted: usize,
    received: Vec<u8>,
    position: usize,
    outgoing: Vec<u8>,
}

impl Socks5Server {
    /// Make it for a client that has said nothing.
    pub fn new(credentials: Option<Credentials>) -> Self {
        Socks5Server {
            credentials,
            step: Step::Greeting,
            wanted: 2,
            received: Vec::new(),
            position: 0,
            outgoing: Vec::new(),
        }
    }

    /// Return what is to be sent now, and forget it.
    pub fn take_outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outgoing)
    }

    /// Return the messages that the client has sent, and what it sent behind them: its early data,
    /// once it has asked, else the beginning of a message.
    pub fn into_received(mut self) -> (Vec<u8>, Vec<u8>) {
        let rest = self.received.split_off(self.position);
        (self.received, rest)
    }

    /// Take bytes of the client, nothing once there is an outcome; None: more has to come.
    pub fn receive(&mut self, content: &[u8]) -> Option<Outcome> {
        if matches!(self.step, Step::Over) {
            return None;
        }
        self.received.extend_from_slice(content);
        while self.received.len() - self.position >= self.wanted {
            let end = self.position + self.wanted;
            let taken = self.received[self.position..end].to_vec();
            self.position = end;
            match self.take(&taken) {
                Ok((step, wanted)) => (self.step, self.wanted) = (step, wanted),
                Err(outcome) => return Some(outcome),
            }
        }
        None
    }

    /// Take a part; returns which one is next and how many bytes it has, or the outcome.
    fn take(&mut self, taken: &[u8]) -> Result<(Step, usize), Outcome> {
        let first = taken.first().copied().unwrap_or_default();
        Ok(match std::mem::replace(&mut self.step, Step::Over) {
            Step::Greeting if first != VERSION => {
                return Err(refused("A client speaks no SOCKS5."));
            }
            Step::Greeting => (Step::Methods, taken[1].into()),
            Step::Methods => self.choose(taken)?,
            Step::PasswordVersion if first != PASSWORD_VERSION => {
                return Err(refused(
                    "A client shows its password in a way that is not known here.",
                ));
            }
            Step::PasswordVersion => (Step::UserLength, 1),
            Step::UserLength => (Step::User, first.into()),
            Step::User => {
                let user = taken.to_vec();
                (Step::PasswordLength { user }, 1)
            }
            Step::PasswordLength { user } => (Step::Password { user }, first.into()),
            Step::Password { user } => self.check(&user, taken)?,
            Step::Request if first != VERSION => {
                return Err(refused("A request is none of SOCKS5."));
            }
            Step::Request => self.address(taken[1], taken[3])?,
            Step::NameLength { command } => {
                let kind = NAME;
                (Step::Address { command, kind }, first.into())
            }
            Step::Address { command, kind } => {
                let host = host(kind, taken);
                (Step::Port { command, host }, 2)
            }
            Step::Port { command, host } => {
                let port = u16::from_be_bytes([taken[0], taken[1]]);
                return Err(self.asked(command, &host, port));
            }
            Step::Over => (Step::Over, 1),
        })
    }

    fn choose(&mut self, methods: &[u8]) -> Result<(Step, usize), Outcome> {
        let (method, next) = match self.credentials {
            None => (NO_METHOD, (Step::Request, 4)),
            Some(_) => (PASSWORD, (Step::PasswordVersion, 1)),
        };
        if methods.contains(&method) {
            self.outgoing.extend_from_slice(&[VERSION, method]);
            return Ok(next);
        }
        self.outgoing.extend_from_slice(&[VERSION, UNACCEPTABLE]);
        Err(refused("A client offers no method that is taken here."))
    }

    fn check(&mut self, user: &[u8], password: &[u8]) -> Result<(Step, usize), Outcome> {
        let expected = self.credentials.as_ref();
        let is_right = expected.is_none_or(|each| each.matches(user, password));
        let status = u8::from(!is_right);
        self.outgoing.extend_from_slice(&[PASSWORD_VERSION, status]);
        if is_right {
            return Ok((Step::Request, 4));
        }
        Err(refused("A client has another name or password."))
    }

    fn address(&mut self, command: u8, kind: u8) -> Result<(Step, usize), Outcome> {
        match kind {
            IPV4 => Ok((Step::Address { command, kind }, 4)),
            IPV6 => Ok((Step::Address { command, kind }, 16)),
            NAME => Ok((Step::NameLength { command }, 1)),
            _ => Err(self.denied(
                Reply::AddressTypeUnsupported,
                "An address is of no known type.",
            )),
        }
    }

    fn asked(&mut self, command: u8, host: &str, port: u16) -> Outcome {
        if command != CONNECT {
            let name = match command {
                2 => "BIND".into(),
                3 => "UDP ASSOCIATE".into(),
                _ => format!("command {command}"),
            };
            let message = format!("{name} is not done here.");
            return self.denied(Reply::CommandUnsupported, &message);
        }
        match label(host, port) {
            Some(label) => Outcome::Asked(label),
            None => self.denied(
                Reply::HostUnreachable,
                "A request names no host or no port.",
            ),
        }
    }

    fn denied(&mut self, reply: Reply, message: &str) -> Outcome {
        self.outgoing.extend_from_slice(&encode_reply(reply));
        refused(message)
    }
}

fn refused(message: &str) -> Outcome {
    Outcome::Refused(message.into())
}

/// Return the text of an address that has the length of its kind.
fn host(kind: u8, address: &[u8]) -> String {
    if let (IPV4, Ok(octets)) = (kind, <[u8; 4]>::try_from(address)) {
        return Ipv4Addr::from(octets).to_string();
    }
    if let (IPV6, Ok(octets)) = (kind, <[u8; 16]>::try_from(address)) {
        return Ipv6Addr::from(octets).to_string();
    }
    String::from_utf8_lossy(address).into_owned()
}

/// Return the label of a channel to a host, as `fairlead_tunnel.targets` has it; the sandbox's own
/// names lead into it. None: this is no host or no port.
fn label(host: &str, port: u16) -> Option<String> {
    let own = host.trim_end_matches('.').to_ascii_lowercase();
    if port == 0 {
        return None;
    }
    if OWN_NAMES.contains(&own.as_str()) {
        return Some(format!("tcp:{port}"));
    }
    let host = if host.contains(':') {
        format!("[{}]", host.trim_matches(['[', ']']))
    } else {
        host.into()
    };
    let label = format!("tcp:{host}:{port}");
    (is_host(&host) && label.len() <= MAX_TARGET_BYTES).then_some(label)
}

/// Say whether it may be one: a name, an IPv4 address, or an IPv6 address in brackets.
fn is_host(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    if let Some(address) = address {
        let fits = |each: u8| each.is_ascii_hexdigit() || matches!(each, b':' | b'.');
        return (2..=45).contains(&address.len()) && address.bytes().all(fits);
    }
    let fits = |each: u8| each.is_ascii_alphanumeric() || matches!(each, b'.' | b'_' | b'-');
    (1..=MOST_NAME_BYTES).contains(&host.len()) && host.bytes().all(fits)
}
