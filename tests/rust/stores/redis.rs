//! The Redis store on a real server, which the tests start.

use std::io::Read;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use penstock::clock::Clock;
use penstock::engine::algorithm::name::AlgorithmName;
use penstock::engine::answer::Answer;
use penstock::engine::time::Now;
use penstock::store::redis::{RedisStore, RedisUrl};
use penstock::store::url::StoreUrl;
use penstock::store::{
    Answers, Batch, Bucket, Keyspace, Stats, Store, StoreError, StoreStep, Wait, Write,
};

use super::toy::{Toy, is_toy};

/// A Redis server for tests. It is killed when the process that started it ends, even after a crash.
pub struct Server {
    pub port: u16,
    /// The shell that runs the server. Its standard input is a pipe, which closes when this process ends.
    shell: Child,
}

impl Server {
    /// Starts a server on a free port, with its files in a separate folder.
    pub fn start(options: &[&str]) -> Server {
        // If the port is taken before the server binds it, another one is tried.
        let found = (0..10).find_map(|_| Server::try_start(options));
        found.expect("a server that can listen")
    }

    fn try_start(options: &[&str]) -> Option<Server> {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|one| one.local_addr());
        let port = port.expect("a free port").port();
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("redis-{port}"));
        std::fs::create_dir_all(&folder).expect("a folder");
        // The server prints a line when it is ready. It is killed when the shell's input ends.
        let script = "command -v redis-server >/dev/null || exit 127\n\
                      redis-server \"$@\" & server=$!\n\
                      cat >/dev/null; kill -9 $server; rm -rf \"$FOLDER\"";
        let mut shell = Command::new("sh")
            .args(["-c", script, "redis-server", "--port", &port.to_string()])
            .args(["--dir", folder.to_str().expect("a path in UTF-8")])
            .args(["--save", "", "--appendonly", "no", "--bind", "127.0.0.1"])
            .args(options)
            .env("FOLDER", &folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut output = shell.stdout.take().expect("a pipe");
        let mut printed = Vec::new();
        let mut byte = [0];
        while output.read(&mut byte).is_ok_and(|count| count == 1) {
            printed.push(byte[0]);
            if printed.ends_with(b"Ready to accept connections") {
                // Further output must not fill the pipe.
                std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
                return Some(Server { port, shell });
            }
        }
        let code = shell.wait().expect("the shell ends").code();
        assert_ne!(
            code,
            Some(127),
            "the tests need redis-server on the PATH; on Debian: apt-get install redis-server"
        );
        None
    }

    /// Returns the URL of this server. The deadline is long, because the test machine may be busy.
    pub fn url(&self, options: &str) -> RedisUrl {
        let url = format!("redis://127.0.0.1:{}?deadline=30s&{options}", self.port);
        match url.parse() {
            Ok(StoreUrl::Redis(url)) => *url,
            other => panic!("{url}: {other:?}"),
        }
    }

    /// Suspends the server, which then does not answer.
    pub fn pause(&self) -> Pause {
        let mut connection = self.connection();
        let info: String = redis::cmd("INFO").arg("server").query(&mut connection).expect("INFO");
        let process = info.lines().find_map(|line| line.strip_prefix("process_id:"));
        let process = process.and_then(|text| text.trim().parse().ok()).expect("a process id");
        signal("STOP", process);
        Pause(process)
    }

    /// Opens a separate connection.
    pub fn connection(&self) -> redis::Connection {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port));
        client.and_then(|client| client.get_connection()).expect("a connection")
    }
}

/// Guard that resumes the server when it is dropped.
pub struct Pause(u32);

impl Drop for Pause {
    fn drop(&mut self) {
        signal("CONT", self.0);
    }
}

fn signal(name: &str, process: u32) {
    let sent = Command::new("kill").arg(format!("-{name}")).arg(process.to_string()).status();
    assert!(sent.expect("kill").success());
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// Returns the server that the tests of this process share.
pub fn server() -> &'static Server {
    #[expect(clippy::disallowed_types, reason = "no test forks that uses a server")]
    static SERVER: std::sync::OnceLock<Server> = std::sync::OnceLock::new();
    SERVER.get_or_init(|| Server::start(&[]))
}

/// A store with a separate key prefix.
///
/// The script decides real limits. The server does not know toys, so they run here and swap the value.
/// They run one at a time, because a swap covers only one bucket of a batch.
pub struct Redis {
    pub store: RedisStore,
    prefix: String,
    connection: Mutex<redis::Connection>,
    toys: Mutex<()>,
}

impl Redis {
    pub fn new(server: &Server) -> Redis {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let prefix = format!("test-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let store = RedisStore::new(server.url(&format!("prefix={prefix}")), true);
        let connection = Mutex::new(server.connection());
        Redis { store, prefix, connection, toys: Mutex::new(()) }
    }

    /// Returns the keys of this store.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        let mut connection = self.connection.lock().expect("a connection");
        let mut command = redis::cmd("KEYS");
        command.arg(format!("[{{]{}:*", self.prefix));
        command.query(&mut *connection).expect("the keys")
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let keys = self.keys();
        if !keys.is_empty() {
            let mut connection = self.connection.lock().expect("a connection");
            redis::cmd("DEL").arg(keys).exec(&mut *connection).expect("the keys are deleted");
        }
    }
}

impl Store for Redis {
    type Error = StoreError;

    fn keyspace(&self, algorithm: AlgorithmName, prefix: &str) -> Keyspace {
        self.store.keyspace(algorithm, prefix)
    }

    fn update<S: StoreStep>(
        &self,
        bucket: Bucket<'_>,
        step: &S,
        now: Now,
        wait: Wait,
    ) -> Result<Answer, StoreError> {
        if is_toy(&step.call()) {
            let _guard = self.toys.lock().unwrap_or_else(|broken| broken.into_inner());
            self.store.update_here(bucket, step, now)
        } else {
            self.store.update(bucket, step, now, wait)
        }
    }

    fn update_all<B: Batch>(
        &self,
        buckets: &[Bucket<'_>],
        batch: &B,
        now: Now,
        clock: &impl Clock,
        wait: Wait,
    ) -> Result<Answers, StoreError> {
        if !batch.calls().iter().any(is_toy) {
            return self.store.update_all(buckets, batch, now, clock, wait);
        }
        let _guard = self.toys.lock().unwrap_or_else(|broken| broken.into_inner());
        let mut states = vec![None; buckets.len()];
        for (&bucket, state) in buckets.iter().zip(&mut states) {
            *state = self.store.update_here(bucket, &Toy::Look, now)?.found;
        }
        let mut writes = vec![Write::Keep; buckets.len()];
        let answers = batch.apply(&states, &[], now, &mut writes);
        for (&bucket, &write) in buckets.iter().zip(&writes) {
            if let Some((state, lifetime)) = write.state() {
                self.store.update_here(bucket, &Toy::Put(state.word(), lifetime), now)?;
            }
        }
        Ok(answers)
    }

    fn update_each<'a, S: StoreStep>(
        &self,
        count: usize,
        call: impl Fn(usize) -> (Bucket<'a>, S),
        now: Now,
        mut each: impl FnMut(usize, Result<&Answer, StoreError>),
    ) {
        if (0..count).any(|index| is_toy(&call(index).1.call())) {
            for index in 0..count {
                let (bucket, step) = call(index);
                match self.update(bucket, &step, now, Wait::Allowed) {
                    Ok(answer) => each(index, Ok(&answer)),
                    Err(error) => return each(index, Err(error)),
                }
            }
        } else {
            self.store.update_each(count, call, now, each);
        }
    }

    fn forget(&self, bucket: Bucket<'_>) -> Result<bool, StoreError> {
        self.store.forget(bucket)
    }

    fn clear(&self) -> Result<u64, StoreError> {
        self.store.clear()
    }

    fn stats(&self, now: Now) -> Result<Stats, StoreError> {
        let stats = self.store.stats(now)?;
        Ok(Stats { buckets: Some(self.keys().len() as u64), ..stats })
    }
}
