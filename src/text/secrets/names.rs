//! What is known of secrets in command lines, as data: names, forms of keys, and the options of single programs. To be
//! added to; the tests of [`super`] say what each entry is for.

/// Names whose value is secret, as the last words of an option's, a variable's or a header's name.
pub(super) const SECRET: &[&[&str]] = &[
    &["pwd"],
    &["pw"],
    &["creds"],
    &["secret"],
    &["secrets"],
    &["credential"],
    &["credentials"],
    &["key", "secret"],
    &["access", "key", "id"],
    &["authorization"],
    &["jwt"],
    &["bearer"],
    &["cookie"],
    &["cookies"],
    &["passcode"],
    &["otp"],
    &["userpass"],
    // OpenSSL's `-passin pass:X`.
    &["passin"],
    &["passout"],
];

/// Ends of words that are written as one: `PGPASSWORD`.
pub(super) const SECRET_ENDS: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "apikey",
    "apisecret",
    "apitoken",
    "secretkey",
    "accesskey",
    "privatekey",
    "authtoken",
    "accesstoken",
    "clientsecret",
];

/// Tokens of language models, which are no secrets.
pub(super) const INNOCENT_TOKENS: &[&str] =
    &["pad", "eos", "bos", "unk", "sep", "cls", "mask", "stop", "start", "end", "image", "special", "per", "decoder"];

/// Columns, fields and places that are called a key.
pub(super) const INNOCENT_KEYS: &[&str] = &[
    "sort",
    "partition",
    "primary",
    "foreign",
    "public",
    "cache",
    "group",
    "label",
    "text",
    "image",
    "audio",
    "video",
    "caption",
    "column",
    "dict",
    "state",
    "data",
    "dataset",
    "order",
    "index",
    "lookup",
    "row",
    "feature",
    "input",
    "output",
    "prompt",
    "target",
    "metric",
    "monitor",
    "batch",
    "obs",
    "host",
    "known",
    "is",
];

/// Passes over data.
pub(super) const INNOCENT_PASSES: &[&str] = &[
    "single", "one", "two", "multi", "first", "second", "last", "num", "max", "n", "forward", "backward", "bwd", "fwd",
    "by", "no",
];

/// Options whose value is `user:password`: the user stays.
pub(super) const LOGINS: &[&str] = &["-u", "-U", "--user", "--proxy-user", "--auth", "--basic-auth", "--login"];

/// Prefixes by which services mark their keys.
pub(super) const KEY_PREFIXES: &[&str] = &[
    "hf_",
    "sk-",
    "sk_live_",
    "sk_test_",
    "rk_live_",
    "gsk_",
    "xai-",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "dckr_pat_",
    "xoxb-",
    "xoxp-",
    "xapp-",
    "nvapi-",
    "hvs.",
    "tskey-",
    "ya29.",
    "AKIA",
    "ASIA",
    "AIza",
    "eyJ",
];

/// Where an option's value stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value {
    /// `-pX` alone: without a value it asks for it, and the next word is something else.
    Glued,
    /// `-pX` or `-p X`.
    GluedOrNext,
}
use Value::{Glued, GluedOrNext};

/// Options that are secret with these programs alone; elsewhere they are ports, paths or patterns.
pub(super) const PROGRAMS: &[(&[&str], &str, Value)] = &[
    (
        &[
            "mysql",
            "mysqldump",
            "mysqladmin",
            "mysqlimport",
            "mysqlcheck",
            "mysqlshow",
            "mysqlpump",
            "mysqlsh",
            "mycli",
            "mariadb",
            "mariadb-dump",
            "mariadb-admin",
            "mariadb-check",
            "mariadb-import",
        ],
        "-p",
        Glued,
    ),
    (&["7z", "7za", "7zr", "7zz", "rar", "unrar"], "-p", Glued),
    (&["rar", "unrar"], "-hp", Glued),
    (&["sshpass", "mongo", "mongosh", "mongodump", "mongorestore", "mongoimport", "mongoexport"], "-p", GluedOrNext),
    // `docker login`, `az login`, `helm registry login`.
    (&["login"], "-p", GluedOrNext),
    (&["zip", "unzip", "sqlcmd", "bcp", "isql", "ipmitool", "mosquitto_pub", "mosquitto_sub"], "-P", GluedOrNext),
    (&["redis-cli", "redis-benchmark"], "-a", GluedOrNext),
    (&["ldapsearch", "ldapadd", "ldapmodify", "ldapdelete", "ldapwhoami", "ldappasswd"], "-w", GluedOrNext),
    (&["curl"], "-b", GluedOrNext),
    (&["openssl"], "-k", GluedOrNext),
    (&["snmpget", "snmpwalk", "snmpset"], "-A", GluedOrNext),
    (&["snmpget", "snmpwalk", "snmpset"], "-X", GluedOrNext),
];
