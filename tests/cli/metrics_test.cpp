// lockstep train --metrics: what Prometheus reads, and that no client disturbs the training.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>

#include "cli/expect.h"
#include "lockstep/cli/metrics_server.h"
#include "lockstep/cli/metrics_text.h"

namespace lockstep {
namespace {

// A connection to a port of this host.
class Connection {
 public:
  explicit Connection(int port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~Connection() { close(socket_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool connected() const { return connected_; }
  void send(const std::string& text) const {
    EXPECT_EQ(::send(socket_, text.data(), text.size(), MSG_NOSIGNAL), std::ssize(text));
  }
  // Until the server closes the connection.
  std::string read_all() const {
    std::string all;
    char buffer[4096];
    for (ssize_t count = 0; (count = recv(socket_, buffer, sizeof(buffer), 0)) > 0;) {
      all.append(buffer, static_cast<std::size_t>(count));
    }
    return all;
  }

 private:
  int socket_;
  bool connected_;
};

std::string ask(int port, const std::string& request) {
  const Connection connection(port);
  EXPECT_TRUE(connection.connected());
  connection.send(request);
  return connection.read_all();
}

std::string get(int port) {
  return ask(port, "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
}

int port_in(const std::string& url) {
  return std::stoi(url.substr(url.rfind(':') + 1));
}

// The text format, version 0.0.4: every sample belongs to a metric that was announced with HELP and
// TYPE just before, and is a number. By the name of the sample with its labels.
using Samples = std::map<std::string, double>;
Samples parse_metrics(const std::string& text) {
  static const std::regex help("# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) .+");
  static const std::regex type(
      "# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram|summary|untyped)");
  static const std::regex sample(
      R"(([a-zA-Z_:][a-zA-Z0-9_:]*)(\{([a-zA-Z_]\w*="([^"\\]|\\.)*",?)*\})? (\S+))");
  Samples samples;
  std::set<std::string> announced;
  std::string helped;
  std::string current;
  std::string kind;
  EXPECT_TRUE(text.ends_with("\n"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, help)) {
      helped = match[1];
    } else if (std::regex_match(line, match, type)) {
      current = match[1];
      kind = match[2];
      EXPECT_EQ(current, helped);
      EXPECT_TRUE(announced.insert(current).second) << current;
    } else if (std::regex_match(line, match, sample)) {
      std::string name = match[1];
      for (const char* suffix : {"_bucket", "_sum", "_count"}) {
        if (kind == "histogram" && name == current + suffix) name = current;
      }
      EXPECT_EQ(name, current) << line;
      EXPECT_TRUE(kind != "counter" || name.ends_with("_total")) << line;
      const std::string number = match[5];
      const bool special = number == "NaN" || number == "+Inf" || number == "-Inf";
      std::size_t used = 0;
      const double value = special ? NAN : std::stod(number, &used);
      EXPECT_TRUE(special || used == number.size()) << line;
      EXPECT_TRUE(samples.emplace(match[1].str() + match[2].str(), value).second) << line;
    } else {
      ADD_FAILURE() << "not a line of the format: " << line;
    }
  }
  return samples;
}

std::string body_of(const std::string& answer) {
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
  EXPECT_NE(answer.find("Content-Type: text/plain; version=0.0.4"), std::string::npos) << answer;
  const std::size_t end = answer.find("\r\n\r\n");
  const std::string body = answer.substr(end + 4);
  EXPECT_NE(answer.find("Content-Length: " + std::to_string(body.size())), std::string::npos);
  return body;
}

RunProgress some_progress() {
  RunProgress progress;
  progress.steps = 5;
  progress.step = 105;
  progress.samples = 40;
  progress.seconds = 10;
  progress.loss = 0.5;
  progress.attribution = {.compute = 0.75, .wait = 0.25};
  progress.devices = {"cpu:0", "cpu:1"};
  progress.memory_bytes = 1000;
  progress.noise = NoiseScale{.value = 12, .low = 5, .high = INFINITY};
  progress.failures = 1;
  for (const double seconds : {0.001, 0.002, 0.002, 3.0, 100.0}) progress.step_seconds.add(seconds);
  progress.logs.set("val_loss", NAN);
  return progress;
}

TEST(MetricsText, IsThatOfPrometheus) {
  const Samples samples = parse_metrics(
      cli::metrics_text(some_progress(), {.run = "a \"run\"\\\n", .model = "mlp", .version = "1"}));
  EXPECT_EQ(samples.at("lockstep_steps_total"), 5);
  EXPECT_EQ(samples.at("lockstep_samples_total"), 40);
  EXPECT_EQ(samples.at("lockstep_loss"), 0.5);
  EXPECT_EQ(samples.at("lockstep_time_seconds_total{part=\"compute\"}"), 7.5);
  EXPECT_EQ(samples.at("lockstep_time_seconds_total{part=\"wait\"}"), 2.5);
  EXPECT_EQ(samples.at("lockstep_memory_bytes"), 1000);
  EXPECT_EQ(samples.at("lockstep_replicas"), 2);
  EXPECT_EQ(samples.at("lockstep_workers"), 1);
  EXPECT_EQ(samples.at("lockstep_noise_scale_samples{limit=\"value\"}"), 12);
  EXPECT_EQ(samples.at("lockstep_failures_total"), 1);
  // Buckets hold all that are shorter.
  EXPECT_EQ(samples.at("lockstep_step_seconds_bucket{le=\"0.001\"}"), 1);
  EXPECT_EQ(samples.at("lockstep_step_seconds_bucket{le=\"0.0025\"}"), 3);
  EXPECT_EQ(samples.at("lockstep_step_seconds_bucket{le=\"50\"}"), 4);
  EXPECT_EQ(samples.at("lockstep_step_seconds_bucket{le=\"+Inf\"}"), 5);
  EXPECT_EQ(samples.at("lockstep_step_seconds_count"), 5);
  EXPECT_NEAR(samples.at("lockstep_step_seconds_sum"), 103.005, 1e-9);
}

TEST(MetricsAddress, IsAPortOfThisHostOrAnAddress) {
  EXPECT_EQ(cli::parse_metrics_address("9100").host, "127.0.0.1");
  EXPECT_EQ(cli::parse_metrics_address("9100").port, 9100);
  EXPECT_EQ(cli::parse_metrics_address("0").port, 0);
  EXPECT_EQ(cli::parse_metrics_address("0.0.0.0:9100").host, "0.0.0.0");
  EXPECT_EQ(cli::parse_metrics_address("[::1]:0").host, "::1");
  for (const char* wrong : {"", "70000", "-1", "here", "here:", "1.2.3.4:9000-9001", "::1:9"}) {
    EXPECT_THROW(cli::parse_metrics_address(wrong), UsageError) << wrong;
  }
}

TEST(MetricsServer, AnswersWhatIsARequestAndRefusesTheRest) {
  cli::MetricsServer server({});
  ASSERT_TRUE(server.url().starts_with("http://127.0.0.1:")) << server.url();
  const int port = port_in(server.url());
  server.set("first\n");
  EXPECT_EQ(body_of(get(port)), "first\n");
  server.set("second\n");
  EXPECT_EQ(body_of(get(port)), "second\n");
  EXPECT_EQ(body_of(ask(port, "GET /?x=1 HTTP/1.0\n\n")), "second\n");
  EXPECT_TRUE(ask(port, "HEAD /metrics HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
  EXPECT_TRUE(ask(port, "GET /other HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
  EXPECT_TRUE(ask(port, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
  EXPECT_TRUE(ask(port, std::string("\0\xFF nonsense\n\n", 13)).starts_with("HTTP/1.1 400"));
  EXPECT_TRUE(ask(port, "\n\n").starts_with("HTTP/1.1 400"));
}

TEST(MetricsServer, ClientsThatSendNothingOrTooMuchKeepNobodyWaiting) {
  cli::MetricsServer server({});
  server.set("text\n");
  const int port = port_in(server.url());
  std::vector<std::unique_ptr<Connection>> silent;
  for (int i = 0; i < 8; ++i) {
    silent.push_back(std::make_unique<Connection>(port));
    silent.back()->send("GET /metr");  // and no more
  }
  EXPECT_EQ(body_of(get(port)), "text\n");
  const Connection endless(port);
  // More than a request may have; the server answers or has closed the connection by then.
  EXPECT_NE(endless.connected(), false);
  endless.send(std::string(9000, 'x'));
  EXPECT_TRUE(endless.read_all().starts_with("HTTP/1.1 431"));
  EXPECT_EQ(body_of(get(port)), "text\n");
}

TEST(MetricsServer, MoreClientsThanItHasPlacesForAreServedInTurn) {
  cli::MetricsServer server({});
  server.set("text\n");
  const int port = port_in(server.url());
  std::vector<std::unique_ptr<Connection>> waiting;
  for (int i = 0; i < 30; ++i) waiting.push_back(std::make_unique<Connection>(port));
  for (const auto& each : waiting) {
    if (each->connected()) each->send("GET / HTTP/1.1\r\n\r\n");
  }
  for (const auto& each : waiting) {
    if (!each->connected()) continue;
    EXPECT_EQ(body_of(each->read_all()), "text\n");
  }
}

TEST(MetricsServer, SaysThatAPortIsTaken) {
  const cli::MetricsServer first({});
  const int port = port_in(first.url());
  try {
    const cli::MetricsServer second({.host = "127.0.0.1", .port = port});
    FAIL() << "two servers at one port";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("--metrics 127.0.0.1:" + std::to_string(port)),
              std::string::npos)
        << error.what();
  }
}

TEST(MetricsOfARun, AreServedWhileItTrainsWhateverClientsDo) {
  const Program program;
  RunningProgram training(program, {"train", "--model", "mlp", "--data", "synthetic", "--steps",
                                    "20", "--epochs", "100000", "--batch-per-replica", "8",
                                    "--replicas", "2", "--run-dir", "run", "--metrics", "0"});
  ASSERT_TRUE(training.wait_for("/metrics\n"));
  const std::string& output = training.output();
  const std::size_t at = output.find("http://127.0.0.1:");
  ASSERT_NE(at, std::string::npos) << output;
  const int port = std::stoi(output.substr(at + 17));
  const Connection silent(port);
  silent.send("GET");
  const Connection malformed(port);
  malformed.send("\r\n\r\n\r\nwhat?");
  // The run goes on all the while: two scrapes see it advance.
  const auto steps_now = [&] {
    return parse_metrics(body_of(get(port))).at("lockstep_steps_total");
  };
  const double first = steps_now();
  while (steps_now() <= first) {
  }
  const Samples samples = parse_metrics(body_of(get(port)));
  EXPECT_EQ(samples.at("lockstep_replicas"), 2);
  EXPECT_GT(samples.at("lockstep_step_seconds_count"), 0);
  EXPECT_EQ(samples.at("lockstep_step_seconds_count"), samples.at("lockstep_steps_total"));
  EXPECT_GT(samples.at("lockstep_time_seconds_total{part=\"compute\"}"), 0);
  EXPECT_GT(samples.at("lockstep_memory_bytes"), 0);
  EXPECT_TRUE(std::isfinite(samples.at("lockstep_loss")));
  training.signal(SIGINT);
  EXPECT_EQ(training.wait(), 128 + SIGINT);
}

TEST(MetricsOfARun, AWrongAddressIsToldBeforeAnythingIsDone) {
  const Program program;
  expect_wrong_use(program,
                   "train --model mlp --data synthetic --steps 2 --run-dir run --metrics x",
                   "--metrics");
  EXPECT_FALSE(std::filesystem::exists(program.folder() / "run"));
}

}  // namespace
}  // namespace lockstep
