// lockstep launch with workers on this host: output, ends, signals, the secret.
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <map>
#include <regex>

#include "cli/expect.h"
#include "cli/launched.h"

namespace lockstep {
namespace {

std::vector<std::string> launch_words(std::vector<std::string> flags, const std::string& script) {
  flags.insert(flags.begin(), "launch");
  for (const char* word : {"--", "sh", "-c"}) flags.emplace_back(word);
  flags.push_back(script);
  return flags;
}

// Each worker that got this far says so through a pipe of its own.
void make_pipes(const Program& program, int workers) {
  for (int w = 0; w < workers; ++w) {
    const std::string name = "ready-" + std::to_string(w);
    ASSERT_EQ(mkfifo((program.folder() / name).c_str(), 0600), 0);
  }
}

TEST(LaunchOutput, HasWholeLinesWithTheWorkersNumber) {
  const Program program;
  const Outcome outcome = program.run(
      "launch --workers 4 -- sh -c 'i=0; while [ $i -lt 300 ]; do printf a; "
      "printf \"b$LOCKSTEP_WORKER-$i\\n\"; printf \"e$LOCKSTEP_WORKER-\" >&2; echo $i >&2; "
      "i=$((i+1)); done; printf tail'");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const auto& [text, pattern] : {std::pair{outcome.out, "\\[(\\d)\\] (?:ab\\1-(\\d+)|tail)"},
                                      std::pair{outcome.err, "\\[(\\d)\\] e\\1-(\\d+)"}}) {
    const std::regex line_pattern(pattern);
    std::map<std::string, int> next;
    for (const std::string& line : lines_of(text)) {
      std::smatch match;
      ASSERT_TRUE(std::regex_match(line, match, line_pattern)) << line;
      if (!match[2].matched) continue;
      EXPECT_EQ(std::stoi(match[2]), next[match[1]]++) << line;
    }
    EXPECT_EQ(next, (std::map<std::string, int>{{"0", 300}, {"1", 300}, {"2", 300}, {"3", 300}}));
  }
}

TEST(LaunchOutput, ShowsOfProgressOnlyWhatTheChiefLeaves) {
  const Program program;
  const Outcome outcome =
      program.run("launch --workers 2 --log-dir logs -- sh -c 'printf \"1/2\\r2/2\\nthe end\\n\"'");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::vector<std::string> lines = lines_of(outcome.out);
  std::ranges::sort(lines);
  EXPECT_EQ(lines, (std::vector<std::string>{"[0] 2/2", "[0] the end", "[1] the end"}));
  EXPECT_EQ(program.text("logs/worker-1.log"), "1/2\r2/2\nthe end\n");
}

TEST(LaunchOutput, PassesTheProgramItsArgumentsAsTheyAre) {
  const Program program;
  const Outcome outcome =
      program.run("launch --workers 1 -- printf '<%s>' '[a,b]' --workers '' -- train 'a  b'");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "[0] <[a,b]><--workers><><--><train><a  b>\n");
}

TEST(LaunchExitCode, IsThatOfTheFirstWorkerThatFailed) {
  const Program program;
  for (const auto& [how, code] : {std::pair{"exit 7", 7}, std::pair{"kill -9 $$", 137}}) {
    const Outcome outcome =
        program.run(std::string("launch --workers 3 --json result.json -- sh -c "
                                "'[ $LOCKSTEP_WORKER != 1 ] || { echo why >&2; ") +
                    how + "; }; exec sleep 1000'");
    EXPECT_EQ(outcome.code, code);
    const std::string words = code == 7 ? "exit code 7" : "signal 9 (killed)";
    EXPECT_NE(outcome.err.find("lockstep: worker 1 on host localhost ended with " + words + "\n"),
              std::string::npos)
        << outcome.err;
    EXPECT_NE(outcome.err.find("[1] why\n"), std::string::npos) << outcome.err;
    const auto json = parsed(program, "result.json");
    EXPECT_EQ(json.at("exit_code"), code);
    EXPECT_EQ(json.at("first_failure").at("worker"), 1);
    EXPECT_EQ(json.at("workers").at(0).at("signal"), SIGTERM);
  }
  EXPECT_EQ(program.run("launch --workers 2 -- true").code, 0);
}

TEST(LaunchFailure, TellsTheFirstCauseAndKeepsWhatFollowsInTheLogs) {
  const Program program;
  make_pipes(program, 2);
  const Outcome outcome = program.run(
      "launch --workers 3 --log-dir logs -- sh -c '"
      "if [ $LOCKSTEP_WORKER = 2 ]; then read a <ready-0; read b <ready-1; echo cause >&2; exit 3; "
      "fi; trap \"echo aftershock >&2; exit 5\" TERM; sleep 1000 & echo go "
      ">ready-$LOCKSTEP_WORKER; "
      "wait'");
  EXPECT_EQ(outcome.code, 3);
  const auto lines = lines_of(outcome.err);
  ASSERT_EQ(lines.size(), 3u) << outcome.err;
  EXPECT_EQ(lines[0], "[2] cause");
  EXPECT_EQ(lines[1], "lockstep: worker 2 on host localhost ended with exit code 3");
  EXPECT_EQ(lines[2], "lockstep: 2 other workers ended after that; what they wrote is in logs");
  EXPECT_EQ(program.text("logs/worker-0.log"), "aftershock\n");
  EXPECT_EQ(program.text("logs/worker-2.log"), "cause\n");
}

TEST(LaunchFailure, RepeatsTheLastErrorsIfTheyAreOutOfSight) {
  const Program program;
  make_pipes(program, 2);
  RunningProgram launch(program,
                        launch_words({"--workers", "2"},
                                     "if [ $LOCKSTEP_WORKER = 1 ]; then echo cause >&2; echo said; "
                                     "read a <ready-1; exit 3; fi; read a <ready-0; i=0; "
                                     "while [ $i -lt 100 ]; do echo noise $i; i=$((i+1)); done; "
                                     "exec sleep 1000"));
  ASSERT_TRUE(launch.wait_for("[1] said"));
  std::ofstream(program.folder() / "ready-0") << "go\n";
  ASSERT_TRUE(launch.wait_for("noise 99"));
  std::ofstream(program.folder() / "ready-1") << "go\n";
  EXPECT_EQ(launch.wait(), 3);
  const std::string errors = program.text(".err");
  EXPECT_NE(errors.find("ended with exit code 3\n    cause\n"), std::string::npos) << errors;
}

TEST(LaunchFailure, KillsWhoDoesNotEndWithinTheGrace) {
  const Program program;
  make_pipes(program, 1);
  const Outcome outcome = program.run(
      "launch --workers 2 --grace 100ms -- sh -c '"
      "if [ $LOCKSTEP_WORKER = 1 ]; then read a <ready-0; exit 4; fi; "
      "trap \"\" TERM; echo go >ready-0; sleep 1000'");
  EXPECT_EQ(outcome.code, 4);
  EXPECT_NE(outcome.err.find("1 of 2 workers did not end within 0.1 s and are killed"),
            std::string::npos)
      << outcome.err;
}

class LaunchSignal : public ::testing::TestWithParam<int> {};

TEST_P(LaunchSignal, ReachesAllWorkersOnce) {
  const Program program;
  RunningProgram launch(
      program, launch_words({"--workers", "3"},
                            "for s in INT TERM HUP USR1; do trap \"echo got $s; exit 0\" $s; done; "
                            "sleep 1000 & echo ready; wait"));
  for (const char* line : {"[0] ready", "[1] ready", "[2] ready"}) {
    ASSERT_TRUE(launch.wait_for(line)) << program.text(".err");
  }
  launch.signal(GetParam());
  EXPECT_EQ(launch.wait(), 0) << program.text(".err");
  const std::string name = sigabbrev_np(GetParam());
  for (int w = 0; w < 3; ++w) {
    const std::string line = "[" + std::to_string(w) + "] got " + name + "\n";
    const std::size_t at = launch.output().find(line);
    EXPECT_NE(at, std::string::npos) << launch.output();
    EXPECT_EQ(launch.output().find(line, at + 1), std::string::npos) << launch.output();
  }
}

TEST_P(LaunchSignal, ThatEndsTheWorkersIsNoFailure) {
  const Program program;
  RunningProgram launch(program, launch_words({"--workers", "2"}, "echo ready; exec sleep 1000"));
  ASSERT_TRUE(launch.wait_for("[0] ready") && launch.wait_for("[1] ready"));
  launch.signal(GetParam());
  EXPECT_EQ(launch.wait(), 128 + GetParam());
  EXPECT_FALSE(launch.ended_by_signal());
  EXPECT_EQ(lines_of(program.text(".err")).size(), 1u) << program.text(".err");
}

INSTANTIATE_TEST_SUITE_P(Signals, LaunchSignal, ::testing::Values(SIGINT, SIGTERM, SIGHUP, SIGUSR1),
                         [](const auto& info) { return std::string(sigabbrev_np(info.param)); });

TEST(LaunchSignals, ASecondInterruptKills) {
  const Program program;
  RunningProgram launch(
      program, launch_words({"--workers", "2", "--grace", "60m"},
                            "trap \"echo heard\" INT; echo ready; while :; do sleep 1000 & "
                            "wait; done"));
  ASSERT_TRUE(launch.wait_for("[0] ready") && launch.wait_for("[1] ready"));
  launch.signal(SIGINT);
  ASSERT_TRUE(launch.wait_for("[0] heard") && launch.wait_for("[1] heard"));
  launch.signal(SIGINT);
  EXPECT_EQ(launch.wait(), 137);
}

TEST(LaunchOrphans, DoNotRemainWhenTheLauncherIsKilled) {
  const Program program;
  RunningProgram launch(program,
                        launch_words({"--workers", "3"},
                                     "trap \"\" TERM HUP; sh -c 'trap \"\" TERM HUP; sleep 1000 & "
                                     "echo grandchild=$! end; wait' & echo worker=$$ end; wait"));
  std::vector<Observed> processes;
  for (int w = 0; w < 3; ++w) {
    ASSERT_TRUE(launch.wait_for("[" + std::to_string(w) + "] worker="));
    ASSERT_TRUE(launch.wait_for("[" + std::to_string(w) + "] grandchild="));
  }
  for (const char* word : {"worker=", "grandchild="}) {
    for (const int id : numbers_after(launch.output(), word)) processes.emplace_back(id);
  }
  ASSERT_EQ(processes.size(), 6u) << launch.output();
  launch.signal(SIGKILL);
  for (const Observed& process : processes) {
    EXPECT_TRUE(process.found());
    EXPECT_TRUE(process.wait());
  }
  EXPECT_EQ(launch.wait(), 137);
}

TEST(LaunchOrphans, OfAWorkerThatEndedAreKilled) {
  const Program program;
  RunningProgram launch(program,
                        launch_words({"--workers", "2"},
                                     "if [ $LOCKSTEP_WORKER = 1 ]; then exec sleep 1000; fi; "
                                     "sleep 1000 & echo left=$! end; read a <go"));
  ASSERT_EQ(mkfifo((program.folder() / "go").c_str(), 0600), 0);
  ASSERT_TRUE(launch.wait_for(" end"));
  const Observed left(numbers_after(launch.output(), "left=").at(0));
  ASSERT_TRUE(left.found());
  std::ofstream(program.folder() / "go") << "go\n";
  EXPECT_TRUE(left.wait());
}

TEST(LaunchSecret, IsReadOnceAndShownNowhere) {
  const Program program;
  RunningProgram launch(
      program, launch_words({"--workers", "2", "--log-dir", "logs"},
                            "cat /proc/self/fd/$LOCKSTEP_SECRET_FD >secret-$LOCKSTEP_WORKER; "
                            "cat /proc/self/fd/$LOCKSTEP_SECRET_FD >again-$LOCKSTEP_WORKER; "
                            "echo launcher=$PPID worker=$$ end; exec sleep 1000"));
  ASSERT_TRUE(launch.wait_for("[0] launcher=") && launch.wait_for("[1] launcher="));
  const std::string secret = program.text("secret-0").substr(0, 64);
  EXPECT_TRUE(std::regex_match(secret, std::regex("[0-9a-f]{64}"))) << secret;
  EXPECT_EQ(program.text("secret-0"), secret + "\n");
  EXPECT_EQ(program.text("secret-1"), secret + "\n");
  EXPECT_EQ(program.text("again-0"), "");
  std::vector<int> ids = numbers_after(launch.output(), "launcher=");
  for (const int id : numbers_after(launch.output(), "worker=")) ids.push_back(id);
  ASSERT_EQ(ids.size(), 4u);
  for (const int id : ids) {
    for (const char* file : {"/environ", "/cmdline"}) {
      const std::string text = whole_file("/proc/" + std::to_string(id) + file);
      EXPECT_FALSE(text.empty());
      EXPECT_EQ(text.find(secret), std::string::npos);
    }
  }
  launch.signal(SIGTERM);
  launch.wait();
  for (const std::string& text :
       {launch.output(), program.text(".err"), program.text("logs/worker-0.log")}) {
    EXPECT_EQ(text.find(secret), std::string::npos);
  }
}

TEST(LaunchEnvironment, PassesPortsOn) {
  const Program program;
  const Outcome outcome = program.run(
      "launch --workers 1 --port-range 23260-23279 -- sh -c 'echo \"$LOCKSTEP_PORT_RANGE "
      "${LOCKSTEP_CONTROL##*:}\"'");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::smatch match;
  ASSERT_TRUE(std::regex_search(outcome.out, match, std::regex("23260-23279 (\\d+)")))
      << outcome.out;
  EXPECT_GE(std::stoi(match[1]), 23260);
  EXPECT_LE(std::stoi(match[1]), 23279);
}

TEST(LaunchEnvironment, SaysWhereAWorkerStands) {
  const Program program;
  const Outcome outcome = program.run(
      "launch --workers 2 --env EXTRA=1 -- sh -c 'echo $LOCKSTEP_WORKER/$LOCKSTEP_WORKERS "
      "$LOCKSTEP_LOCAL_WORKER/$LOCKSTEP_LOCAL_WORKERS $LOCKSTEP_CONTROL $EXTRA $OWN "
      "cores=$LOCKSTEP_CORES allowed=$(nproc)'",
      "OWN=mine LOCKSTEP_WORKER=9");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::vector<std::string> lines = lines_of(outcome.out);
  std::ranges::sort(lines);
  ASSERT_EQ(lines.size(), 2u) << outcome.out;
  for (int w = 0; w < 2; ++w) {
    const std::string n = std::to_string(w);
    const std::regex pattern("\\[" + n + "\\] " + n + "/2 " + n +
                             "/2 127\\.0\\.0\\.1:\\d+ 1 mine cores=\\d+ allowed=\\d+");
    const std::string& line = lines[static_cast<std::size_t>(w)];
    EXPECT_TRUE(std::regex_match(line, pattern)) << line;
    EXPECT_GE(numbers_after(line, "cores=").at(0), 1);
    EXPECT_LE(numbers_after(line, "cores=").at(0), numbers_after(line, "allowed=").at(0));
  }
}

TEST(LaunchMany, SixtyFourWorkersStartAndEnd) {
  const Program program;
  EXPECT_EQ(program.run("launch --workers 64 -- true").code, 0);
  const Outcome outcome = program.run("launch --workers 64 -- sh -c 'echo $LOCKSTEP_WORKER'");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(lines_of(outcome.out).size(), 64u);
}

TEST(LaunchMistakes, AreOneSentence) {
  const Program program;
  std::ofstream(program.folder() / "plain") << "text";
  expect_wrong_use(program, "launch --workers 0 -- true", "--workers");
  expect_wrong_use(program, "launch -- true", "--workers");
  expect_wrong_use(program, "launch --workers 2", "program");
  expect_wrong_use(program, "launch --workers 2 --", "program");
  expect_wrong_use(program, "launch --workers 2 -- no-such-program", "no-such-program");
  expect_wrong_use(program, "launch --workers 2 -- ./nothing", "./nothing");
  expect_wrong_use(program, "launch --workers 2 -- ./plain", "./plain");
  expect_wrong_use(program, "launch --workers 2 -- plain", "write ./plain");
  expect_wrong_use(program, "launch --workers 1 --hosts a,b -- true", "--workers 1");
  expect_wrong_use(program, "launch --workers 4 --hosts a:2,b:1 -- true", "--workers 4");
  expect_wrong_use(program, "launch --workers 1 --hosts no-such-host.invalid -- true",
                   "no-such-host.invalid");
  expect_wrong_use(program, "launch --workers 1 --on-failure pray -- true", "--on-failure");
  expect_wrong_use(program, "launch --workers 1 --grace soon -- true", "--grace soon");
  expect_wrong_use(program, "launch --workers 1 --port-range 9 -- true", "--port-range 9");
  expect_wrong_use(program, "launch --workers 1 --bind nowhere -- true", "--bind nowhere");
  expect_wrong_use(program, "launch --workers 1 --cores-per-worker 99999 -- true",
                   "--cores-per-worker 99999");
  expect_wrong_use(program, "launch --workers 1 --env NOT_SET_HERE -- true", "NOT_SET_HERE");
  expect_wrong_use(program, "launch --workers 1 --log-dir plain/logs -- true", "--log-dir");
  expect_wrong_use(program, "launch --workers 1 true", "true");
}

TEST(LaunchHelp, IsComplete) {
  const Program program;
  const Outcome outcome = program.run("launch --help");
  EXPECT_EQ(outcome.code, 0);
  for (const char* word :
       {"--workers", "--hosts", "--on-failure", "--port-range", "--bind", "--grace",
        "--cores-per-worker", "--log-dir", "--env", "--ssh", "--json", "LOCKSTEP_WORKER",
        "LOCKSTEP_SECRET_FD", "LOCKSTEP_CONTROL", "-- program"}) {
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word;
  }
}

}  // namespace
}  // namespace lockstep
