// lockstep launch with workers on other hosts: through a command that only pretends to be ssh, and
// through a real sshd on loopback.
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <regex>

#include "cli/expect.h"
#include "cli/launched.h"

namespace lockstep {
namespace {

// Notes its words and runs the shell line here, in another folder and with almost no environment.
class FakeSsh : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto file = program_.folder() / "fake";
    std::ofstream(file) << "#!/bin/sh\n"
                           "[ \"$1\" != gone ] || { echo 'cannot resolve gone' >&2; exit 255; }\n"
                           "printf '%s\\n' \"$@\" >>" +
                               (program_.folder() / "words").string() +
                               "\ncd /\nexec env -i PATH=\"$PATH\" /bin/sh -c \"$2\"\n";
    ASSERT_EQ(chmod(file.c_str(), 0700), 0);
  }
  std::vector<std::string> flags() const {
    return {"launch", "--ssh", "./fake", "--bind", "127.0.0.1", "--hosts"};
  }
  std::vector<std::string> words(const std::string& hosts, const std::string& script) const {
    std::vector<std::string> all = flags();
    for (const std::string& word :
         {hosts, std::string("--"), std::string("sh"), std::string("-c"), script}) {
      all.push_back(word);
    }
    return all;
  }
  Outcome run(const std::string& rest, const std::string& settings = "") const {
    return program_.run("launch --ssh ./fake --bind 127.0.0.1 --hosts " + rest, settings);
  }

  Program program_;
};

TEST_F(FakeSsh, WorkersFindTheirFolderEnvironmentAndArguments) {
  const Outcome outcome =
      run("a:2,b:1 --env 'QUOTES=it'\\''s \"$HOME\"\ntwo lines' --env LENT -- sh -c '"
          "echo \"$LOCKSTEP_WORKER/$LOCKSTEP_WORKERS "
          "$LOCKSTEP_LOCAL_WORKER/$LOCKSTEP_LOCAL_WORKERS $1\"; "
          "echo $LOCKSTEP_OWN-$LENT-$OTHER; pwd; echo \"$QUOTES\"' sh 'an  argument'",
          "LOCKSTEP_OWN=own LENT=lent OTHER=other");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::vector<std::string> found;
  for (const std::string& line : lines_of(outcome.out)) {
    if (line.starts_with("[a:1]")) found.push_back(line);
  }
  EXPECT_EQ(found, (std::vector<std::string>{"[a:1] 1/3 1/2 an  argument", "[a:1] own-lent-",
                                             "[a:1] " + program_.folder().string(),
                                             "[a:1] it's \"$HOME\"", "[a:1] two lines"}))
      << outcome.out;
  EXPECT_NE(outcome.out.find("[b:2] 2/3 0/1 an  argument\n"), std::string::npos) << outcome.out;
}

TEST_F(FakeSsh, WorkersShareTheCoresOfTheirHost) {
  const Outcome outcome = run("a --workers 2 -- sh -c 'echo cores=$LOCKSTEP_CORES now=$(nproc)'");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const std::string& line : lines_of(outcome.out)) {
    EXPECT_EQ(numbers_after(line, "cores="), numbers_after(line, "now=")) << line;
  }
  const Outcome many = run("a --cores-per-worker 99999 --workers 2 -- true");
  EXPECT_EQ(many.code, 2);
  EXPECT_NE(many.err.find("--cores-per-worker 99999"), std::string::npos) << many.err;
}

TEST_F(FakeSsh, TheSecretIsInNoListOfProcesses) {
  RunningProgram launch(program_, words("a",
                                        "cat <&$LOCKSTEP_SECRET_FD >secret; cat <&3 >again; "
                                        "cat >input; echo worker=$$ end; exec sleep 1000"));
  ASSERT_TRUE(launch.wait_for(" end")) << program_.text(".err");
  const std::string secret = program_.text("secret").substr(0, 64);
  EXPECT_TRUE(std::regex_match(secret, std::regex("[0-9a-f]{64}"))) << secret;
  EXPECT_EQ(program_.text("again"), "");
  EXPECT_EQ(program_.text("input"), "");
  int looked_at = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    for (const char* file : {"/cmdline", "/environ"}) {
      const std::string text = whole_file(entry.path().string() + file);
      looked_at += text.find("LOCKSTEP_SECRET_FD") != std::string::npos ? 1 : 0;
      EXPECT_EQ(text.find(secret), std::string::npos) << entry.path();
    }
  }
  EXPECT_GE(looked_at, 1);
  EXPECT_EQ(program_.text("words").find(secret), std::string::npos);
  EXPECT_EQ(program_.text("words").find("LOCKSTEP"), std::string::npos);
}

TEST_F(FakeSsh, ExitCodesAndSignalsComeBack) {
  EXPECT_EQ(run("a,b -- true").code, 0);
  const Outcome code = run("a,b -- sh -c '[ $LOCKSTEP_WORKER = 0 ] || exit 6; exec sleep 1000'");
  EXPECT_EQ(code.code, 6);
  EXPECT_NE(code.err.find("worker 1 on host b ended with exit code 6"), std::string::npos)
      << code.err;
  const Outcome killed =
      run("a,b -- sh -c '[ $LOCKSTEP_WORKER = 0 ] || kill -9 $$; exec sleep 1000'");
  EXPECT_EQ(killed.code, 137);
  EXPECT_NE(killed.err.find("worker 1 on host b ended with signal 9 (killed)"), std::string::npos)
      << killed.err;
  EXPECT_EQ(run("a -- no-such-program").code, 127);
}

TEST_F(FakeSsh, AHostThatCannotBeReachedIsNamed) {
  const Outcome outcome = run("localhost,gone -- sleep 1000");
  EXPECT_EQ(outcome.code, 255);
  EXPECT_NE(outcome.err.find("worker 1 on host gone: ssh ended with exit code 255"),
            std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.err.find("[gone:1] cannot resolve gone\n"), std::string::npos) << outcome.err;
}

TEST_F(FakeSsh, SignalsArePassedOn) {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    const std::string name = sigabbrev_np(signal);
    RunningProgram launch(program_, words("a,b", "trap 'echo got " + name + "; exit 9' " + name +
                                                     "; sleep 1000 & echo ready; wait"));
    ASSERT_TRUE(launch.wait_for("[a:0] ready") && launch.wait_for("[b:1] ready"));
    launch.signal(signal);
    EXPECT_EQ(launch.wait(), 9) << name << program_.text(".err");
    EXPECT_NE(launch.output().find("[b:1] got " + name), std::string::npos) << launch.output();
  }
}

TEST_F(FakeSsh, WorkersThatIgnoreSignalsAreKilledAfterTheGrace) {
  std::vector<std::string> all = words("a", "trap '' TERM; echo ready; sleep 1000");
  all.insert(all.begin() + 1, {"--grace", "100ms"});
  RunningProgram launch(program_, all);
  ASSERT_TRUE(launch.wait_for("ready"));
  launch.signal(SIGTERM);
  EXPECT_EQ(launch.wait(), 137) << program_.text(".err");
}

const char* const kFamily =
    "trap '' TERM HUP; sh -c 'sleep 1000 & echo grandchild=$! end; wait' & echo worker=$$ end; "
    "wait";

// All that the worker's own script says: its process and that of its grandchild.
std::vector<Observed> family(RunningProgram& launch) {
  std::vector<Observed> processes;
  if (!launch.wait_for("worker=") || !launch.wait_for("grandchild=")) return processes;
  for (const char* word : {"worker=", "grandchild="}) {
    for (const int id : numbers_after(launch.output(), word)) processes.emplace_back(id);
  }
  return processes;
}

TEST_F(FakeSsh, NothingRemainsWhenTheLauncherIsKilled) {
  RunningProgram launch(program_, words("a", kFamily));
  const std::vector<Observed> processes = family(launch);
  ASSERT_EQ(processes.size(), 2u) << launch.output() << program_.text(".err");
  launch.signal(SIGKILL);
  for (const Observed& process : processes) EXPECT_TRUE(process.found() && process.wait());
}

// A port that is free now.
int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  bind(socket, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  close(socket);
  return ntohs(address.sin_port);
}

// An sshd with keys of its own, on loopback, for the user who runs the test.
class RealSsh : public ::testing::Test {
 protected:
  void SetUp() override {
    const passwd* user = getpwuid(getuid());
    if (access("/usr/sbin/sshd", X_OK) != 0 || std::system("command -v ssh >/dev/null") != 0 ||
        user == nullptr) {
      GTEST_SKIP() << "sshd or ssh is not installed (packages-tests.txt)";
    }
    const std::string folder = program_.folder().string();
    const std::string keys = "cd '" + folder +
                             "' && ssh-keygen -q -t ed25519 -N '' -f host && ssh-keygen -q -t "
                             "ed25519 -N '' -f user && cp user.pub authorized";
    ASSERT_EQ(std::system(keys.c_str()), 0);
    if (getuid() == 0) static_cast<void>(mkdir("/run/sshd", 0755));  // sshd insists on it
    port_ = free_port();
    std::ofstream(program_.folder() / "sshd_config")
        << "ListenAddress 127.0.0.1\nPort " << port_ << "\nHostKey " << folder
        << "/host\nAuthorizedKeysFile " << folder << "/authorized\nPidFile none\nUsePAM no\n"
        << "StrictModes no\nPasswordAuthentication no\nPermitRootLogin yes\nMaxStartups 100\n";
    std::ofstream(program_.folder() / "ssh_config")
        << "Host other\n  HostName 127.0.0.1\n  Port " << port_ << "\n  User " << user->pw_name
        << "\n  IdentityFile " << folder << "/user\n  IdentitiesOnly yes\n"
        << "  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
        << "Host closed\n  HostName 127.0.0.1\n  Port 1\n";
    start_server();
  }
  void TearDown() override {
    if (server_ <= 0) return;
    kill(server_, SIGTERM);
    waitpid(server_, nullptr, 0);
  }
  void start_server() {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    server_ = fork();
    if (server_ == 0) {
      dup2(ends[1], STDERR_FILENO);
      close(ends[0]);
      const std::string config = (program_.folder() / "sshd_config").string();
      execl("/usr/sbin/sshd", "/usr/sbin/sshd", "-D", "-e", "-f", config.c_str(), nullptr);
      _exit(127);
    }
    close(ends[1]);
    log_ = ends[0];
    std::string seen;  // it says when it listens
    char buffer[512];
    while (seen.find("Server listening") == std::string::npos) {
      const ssize_t count = read(log_, buffer, sizeof(buffer));
      if (count <= 0) GTEST_SKIP() << "sshd does not start here: " << seen;
      seen.append(buffer, static_cast<std::size_t>(count));
    }
  }
  std::vector<std::string> words(const std::string& hosts, const std::string& script) const {
    return {
        "launch", "--ssh", "ssh -F ssh_config", "--bind", "127.0.0.1", "--hosts", hosts, "--", "sh",
        "-c",     script};
  }

  Program program_;
  int port_ = 0;
  pid_t server_ = -1;
  int log_ = -1;
};

TEST_F(RealSsh, RunsWorkersAndPassesSignalsSecretAndExitCode) {
  RunningProgram job(program_,
                     words("localhost,other",
                           "cat /proc/self/fd/$LOCKSTEP_SECRET_FD >secret-$LOCKSTEP_WORKER; "
                           "trap 'echo stopping; exit 9' INT; sleep 1000 & "
                           "echo $LOCKSTEP_WORKER/$LOCKSTEP_WORKERS ready; wait"));
  ASSERT_TRUE(job.wait_for("[localhost:0] 0/2 ready")) << program_.text(".err");
  ASSERT_TRUE(job.wait_for("[other:1] 1/2 ready")) << program_.text(".err");
  EXPECT_EQ(program_.text("secret-0").size(), 65u);
  EXPECT_EQ(program_.text("secret-0"), program_.text("secret-1"));
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(), 9) << program_.text(".err");
  EXPECT_NE(job.output().find("[other:1] stopping"), std::string::npos) << job.output();
}

TEST_F(RealSsh, NothingRemainsWhenTheLauncherIsKilled) {
  RunningProgram launch(program_, words("other", kFamily));
  const std::vector<Observed> processes = family(launch);
  ASSERT_EQ(processes.size(), 2u) << launch.output() << program_.text(".err");
  launch.signal(SIGKILL);
  for (const Observed& process : processes) EXPECT_TRUE(process.found() && process.wait());
}

TEST_F(RealSsh, AHostThatRefusesIsNamed) {
  RunningProgram launch(program_, words("closed", "true"));
  EXPECT_EQ(launch.wait(), 255);
  EXPECT_NE(program_.text(".err").find("worker 0 on host closed: ssh ended"), std::string::npos)
      << program_.text(".err");
}

}  // namespace
}  // namespace lockstep
