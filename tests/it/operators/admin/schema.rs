//! Real answers of the admin API, held to the schemas of its description by Python's jsonschema.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::http_client::Response;
use crate::support::tools;

/// Answers to be validated.
#[derive(Default)]
pub struct Answers(Vec<Value>);

/// Reads the description and the answers, and prints each violation.
const SCRIPT: &str = r"
import json, re, sys
from jsonschema import Draft202012Validator
given = json.load(sys.stdin)
document = given['document']
Draft202012Validator.check_schema({'$defs': document['components']['schemas']})
for answer in given['answers']:
    path = answer['path'].split('?')[0]
    known = [p for p in document['paths'] if re.fullmatch(re.sub(r'\{[^}]*\}', '[^/]+', p), path)]
    if not known:
        print('not described:', answer['path']); continue
    responses = document['paths'][known[0]][answer['method']]['responses']
    response = responses.get(str(answer['status'])) or responses['default']
    schema = response['content']['application/json']['schema']
    schema = {**schema, 'components': document['components']}
    for error in Draft202012Validator(schema).iter_errors(answer['body']):
        place = '/'.join(map(str, error.absolute_path))
        print(answer['method'], answer['path'], answer['status'], place, error.message[:300])
";

impl Answers {
    /// Adds an answer: the method in lower case, and the path.
    pub fn add(&mut self, method: &str, path: &str, answer: &Response) {
        let body: Value = serde_json::from_str(&answer.body)
            .unwrap_or_else(|error| panic!("{path}: {error}: {}", answer.body));
        assert_eq!(
            answer.header("content-type"),
            Some("application/json"),
            "{path}"
        );
        self.0
            .push(json!({ "method": method, "path": path, "status": answer.status, "body": body }));
    }

    /// Compares all of them with the description.
    pub fn validate(&self, document: &str) {
        let document: Value = serde_json::from_str(document).expect("the description is JSON");
        assert_eq!(violations(&document, &self.0), "");
        // The check can fail: a property that is not described is one.
        let mut wrong = self.0.clone();
        wrong[0]["body"]["undescribed"] = true.into();
        assert!(violations(&document, &wrong).contains("undescribed"));
    }
}

fn violations(document: &Value, answers: &[Value]) -> String {
    let mut python = Command::new(tools::kubernetes_validate().with_file_name("python"));
    let mut python = python
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python runs");
    let given = json!({ "document": document, "answers": answers }).to_string();
    python
        .stdin
        .take()
        .expect("piped")
        .write_all(given.as_bytes())
        .expect("read");
    let output = python.wait_with_output().expect("python ends");
    assert!(output.status.success());
    String::from_utf8_lossy(&output.stdout).into_owned()
}
