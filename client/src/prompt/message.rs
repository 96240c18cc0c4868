//! Messages as no provider writes them and every provider can: who speaks, and in which parts. What a provider's JSON
//! has beyond that stays with the message and the part that it belongs to, and is written back to the same provider.

use data_encoding::BASE64;
use serde_json::{Map, Value};

/// Whose format something was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wire {
    /// OpenAI Chat Completions: `messages`.
    OpenAiChat,
    /// OpenAI Responses: `instructions` and `input`.
    OpenAiResponses,
    /// Anthropic Messages: `system` and `messages`.
    Anthropic,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Who built the agent.
    System,
    /// The same, in a message that some providers rank beneath `System`.
    Developer,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// A tool.
    Tool,
}

/// What a provider's JSON had that has no place of its own here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Extra {
    /// From where; none for what was made here.
    pub wire: Option<Wire>,
    /// Text stood in a list of parts where a plain string would have done.
    pub list: bool,
    /// Other fields, as they were.
    pub fields: Map<String, Value>,
}

impl Extra {
    /// The other fields, if this is whose they are; without what the adapter remembers for itself.
    pub(crate) fn of(&self, wire: Wire) -> Map<String, Value> {
        let mut fields = self.fields.clone();
        fields.retain(|name, _| self.wire == Some(wire) && !name.starts_with(MARK));
        fields
    }

    /// What the adapter of this provider remembers.
    pub(crate) fn mark(&self, wire: Wire, mark: &str) -> Option<&Value> {
        self.fields.get(mark).filter(|_| self.wire == Some(wire))
    }
}

/// What names in `fields` begin with that are never written.
const MARK: char = '\0';

/// One message.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// The agent or user, where it has a name; empty where not.
    pub author: String,
    /// What is said, in order.
    pub parts: Vec<Part>,
    /// What else was there.
    pub extra: Extra,
}

impl Message {
    /// One of text.
    #[must_use]
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Self::of(role, vec![Part::text(text)])
    }

    /// One of any parts.
    #[must_use]
    pub fn of(role: Role, parts: Vec<Part>) -> Self {
        Self {
            role,
            author: String::new(),
            parts,
            extra: Extra::default(),
        }
    }

    /// All text of it, line by line.
    #[must_use]
    pub fn to_text(&self) -> String {
        joined(&self.parts)
    }
}

/// A piece of a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Text.
    Text(Text),
    /// An image, a recording, a document.
    File(File),
    /// The model calls a tool.
    Call(ToolCall),
    /// What a tool gave.
    Result(ToolResult),
    /// What only this provider has, as it was.
    Other(Wire, Value),
}

impl Part {
    /// Text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(Text {
            text: text.into(),
            extra: Extra::default(),
        })
    }
}

/// A text.
#[derive(Clone, Debug, PartialEq)]
pub struct Text {
    /// It.
    pub text: String,
    /// What else was there.
    pub extra: Extra,
}

/// What a file is to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// Something to look at.
    Image,
    /// Something to hear.
    Audio,
    /// Something to read.
    Document,
}

/// A file that is part of the conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct File {
    /// What it is.
    pub kind: FileKind,
    /// Empty if it has none.
    pub name: String,
    /// Its media type; empty if it is not said.
    pub mime: String,
    /// Where its bytes are.
    pub source: FileSource,
    /// What else was there.
    pub extra: Extra,
}

/// Where a file's bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileSource {
    /// Here, in base64.
    Base64(String),
    /// Here, as text.
    Text(String),
    /// There.
    Url(String),
    /// With the provider, by its id.
    Id(String),
}

impl File {
    /// The bytes, if they are here.
    #[must_use]
    pub fn bytes(&self) -> Option<Vec<u8>> {
        match &self.source {
            FileSource::Base64(text) => BASE64.decode(text.trim().as_bytes()).ok(),
            FileSource::Text(text) => Some(text.clone().into_bytes()),
            FileSource::Url(_) | FileSource::Id(_) => None,
        }
    }
}

/// A call that the model makes.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// The model's id for it.
    pub id: String,
    /// The tool.
    pub name: String,
    /// An object, or the string that the model wrote in its place.
    pub arguments: Value,
    /// What else was there.
    pub extra: Extra,
}

impl ToolCall {
    /// The arguments as an object; empty if they are none.
    #[must_use]
    pub fn object(&self) -> Map<String, Value> {
        match &self.arguments {
            Value::Object(map) => map.clone(),
            Value::String(text) => serde_json::from_str(text).unwrap_or_default(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => Map::new(),
        }
    }

    /// The arguments as JSON in a string.
    #[must_use]
    pub fn to_text(&self) -> String {
        match &self.arguments {
            Value::String(text) => text.clone(),
            Value::Null => "{}".to_owned(),
            other @ (Value::Object(_) | Value::Array(_) | Value::Bool(_) | Value::Number(_)) => {
                other.to_string()
            }
        }
    }
}

/// What a tool gave.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolResult {
    /// The call that it answers.
    pub id: String,
    /// Text, and for some providers files.
    pub parts: Vec<Part>,
    /// It is what went wrong.
    pub is_error: bool,
    /// What else was there.
    pub extra: Extra,
}

impl ToolResult {
    /// All text of it.
    #[must_use]
    pub fn to_text(&self) -> String {
        joined(&self.parts)
    }
}

/// JSON that is no request of that provider.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct Malformed {
    /// Where.
    pub place: String,
    /// What is wrong.
    pub problem: &'static str,
}

impl Malformed {
    pub(crate) fn new(place: impl Into<String>, problem: &'static str) -> Self {
        Self {
            place: place.into(),
            problem,
        }
    }
}

impl Wire {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::OpenAiChat, Self::OpenAiResponses, Self::Anthropic];

    /// The messages of a request's body.
    pub fn read(self, body: &Value) -> Result<Vec<Message>, Malformed> {
        match self {
            Self::OpenAiChat => super::openai_chat::read(body),
            Self::OpenAiResponses => super::openai_responses::read(body),
            Self::Anthropic => super::anthropic::read(body),
        }
    }

    /// Puts messages into a request's body in place of those that are there; the rest of it stays.
    pub fn write(self, messages: &[Message], body: &mut Map<String, Value>) {
        match self {
            Self::OpenAiChat => super::openai_chat::write(messages, body),
            Self::OpenAiResponses => super::openai_responses::write(messages, body),
            Self::Anthropic => super::anthropic::write(messages, body),
        }
    }
}

fn joined(parts: &[Part]) -> String {
    let mut text = String::new();
    for part in parts {
        if let Part::Text(piece) = part {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&piece.text);
        }
    }
    text
}
