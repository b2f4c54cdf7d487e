// lockstep launch: starts the workers of a job, here or on other hosts.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/cli/command.h"
#include "lockstep/cli/number.h"
#include "lockstep/cluster/address.h"
#include "lockstep/cluster/control/control_server.h"
#include "lockstep/cluster/etcd/etcd_address.h"
#include "lockstep/cluster/etcd/etcd_observer.h"
#include "lockstep/cluster/launch/launch.h"

namespace lockstep::cli {
namespace {

constexpr int kMostWorkers = 4096;

const char* const kLaunchNotes =
    "Usage: lockstep launch --workers N [OPTIONS] -- program [ARGUMENTS]\n\n"
    "Each worker finds in its environment LOCKSTEP_WORKER and LOCKSTEP_WORKERS (its number and "
    "how\n"
    "many there are), LOCKSTEP_LOCAL_WORKER and LOCKSTEP_LOCAL_WORKERS (the same on its host),\n"
    "LOCKSTEP_CONTROL (host:port of the control plane), LOCKSTEP_CORES (its share of the cores)\n"
    "and LOCKSTEP_SECRET_FD (a descriptor from which it reads the job's secret, once).\n\n"
    "SIGINT, SIGTERM, SIGHUP and SIGUSR1 go to all workers, which then have --grace to end; a "
    "second\n"
    "SIGINT kills them. When a worker fails, --on-failure says what comes next; with stop, the\n"
    "others are ended in the same way. The exit code is\n"
    "that of the first worker that failed (128 + signal if a signal ended it), or 0.";

struct LaunchFlags {
  int workers = 0;
  std::vector<std::string> hosts;
  std::string on_failure = "stop";
  std::string rendezvous;
  std::string port_range;
  std::string bind;
  std::string grace = "25s";
  std::string heartbeat_timeout = "5s";
  int cores_per_worker = 0;
  std::string log_dir;
  std::vector<std::string> env;
  std::string ssh = "ssh";
  TlsFiles tls;
  std::string json;
  std::vector<std::string> program;
};

// Reads "25s", "500ms" or "2m".
std::chrono::milliseconds duration_of(const char* flag, const std::string& text) {
  std::int64_t count = 0;
  const char* end = text.data() + text.size();
  const auto [unit, error] = std::from_chars(text.data(), end, count);
  const std::string name(unit, end);
  const std::int64_t factor = name == "ms" ? 1 : name == "s" ? 1000 : name == "m" ? 60'000 : 0;
  require(error == std::errc() && factor > 0 && count >= 0 && count <= 1'000'000,
          "{} {}: write a time such as 500ms, 25s or 2m", flag, text);
  return std::chrono::milliseconds(count * factor);
}

std::vector<std::string> own_environment() {
  std::vector<std::string> settings;
  for (char** each = environ; *each != nullptr; ++each) settings.emplace_back(*each);
  return settings;
}

bool is_variable_name(const std::string& name) {
  const auto allowed = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
         std::ranges::all_of(name, allowed);
}

// What workers on all hosts get: this process's LOCKSTEP_ variables and those of --env.
launch::Variables variables_for_all(const std::vector<std::string>& named) {
  launch::Variables variables;
  for (const std::string& setting : own_environment()) {
    const std::size_t equals = setting.find('=');
    if (!setting.starts_with("LOCKSTEP_") || equals == std::string::npos) continue;
    const std::string name = setting.substr(0, equals);
    if (is_variable_name(name)) variables.emplace_back(name, setting.substr(equals + 1));
  }
  for (const std::string& setting : named) {
    const std::size_t equals = setting.find('=');
    const std::string name = setting.substr(0, equals);
    require(is_variable_name(name), "--env {}: write NAME or NAME=VALUE", setting);
    const char* own = std::getenv(name.c_str());
    require(equals != std::string::npos || own != nullptr,
            "--env {}: there is no such variable here; write {}=VALUE", name, name);
    variables.emplace_back(name, equals == std::string::npos ? own : setting.substr(equals + 1));
  }
  return variables;
}

// The folder as the shell names it, which other hosts may know by that name alone.
std::string working_folder() {
  std::error_code error;
  const char* named = std::getenv("PWD");
  if (named != nullptr && std::filesystem::equivalent(named, ".", error)) return named;
  return std::filesystem::current_path().string();
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  require(!words.empty(), "--ssh: name a command, such as 'ssh -p 2222'");
  return words;
}

launch::ControlReport report_of(const ControlEvent& event) {
  using Kind = launch::ControlReport::Kind;
  const bool joined = event.kind == ControlEventKind::Joined;
  // One that was no member yet may come again.
  const bool lost = event.kind == ControlEventKind::Lost && !event.goes_on;
  const bool left = event.kind == ControlEventKind::Left || lost;
  return {.kind = joined ? Kind::Joined
                  : left ? Kind::Left
                         : Kind::Failed,
          .worker = event.seat,
          .message = event.text,
          .goes_on = event.goes_on,
          .running = event.cause == FailureCause::Silent || event.cause == FailureCause::Stuck};
}

// The control plane, served by the launcher. How a process ended the launcher sees for itself, and
// what a worker says about itself the worker prints; what it hears from here is which worker has
// fallen silent or stands still, and whether the job goes on.
class ServedControl final : public launch::ControlPlane {
 public:
  ServedControl(const launch::ControlRequest& request, const TlsFiles& tls)
      : server_({.address = launch::with_ports(request.bind, request.ports),
                 .workers = request.workers,
                 .secret = request.secret,
                 .tls = tls,
                 .heartbeat_timeout = request.heartbeat_timeout,
                 .on_failure = request.on_failure,
                 .on_event = [report = request.report](const ControlEvent& event) {
                   const bool about_workers = event.kind != ControlEventKind::Refused &&
                                              event.kind != ControlEventKind::Formed;
                   if (about_workers && event.seat >= 0 && report) report(report_of(event));
                 }}) {}
  std::string address() const override { return server_.address(); }
  bool reports() const override { return true; }

 private:
  ControlServer server_;
};

// The members are kept by an etcd: nothing is served here. The launcher hears there which worker
// has fallen silent or stands still, as from a control plane of its own; where it hears nothing,
// since no member is left to tell, it goes by the processes.
class EtcdControl final : public launch::ControlPlane {
 public:
  EtcdControl(std::string address, const launch::ControlRequest& request, const TlsFiles& tls)
      : address_(std::move(address)) {
    const EtcdAddress etcd = parse_etcd_address(address_);
    observer_ = std::make_unique<EtcdObserver>(
        EtcdObserverOptions{.endpoints = etcd.endpoints,
                            .job = etcd.job.empty() ? "lockstep" : etcd.job,
                            .tls = tls,
                            .on_failure = request.on_failure,
                            .on_event = [report = request.report](const ControlEvent& event) {
                              if (event.seat >= 0 && report) report(report_of(event));
                            }});
  }
  std::string address() const override { return address_; }
  bool reports() const override { return true; }
  std::optional<std::chrono::milliseconds> reports_within() const override {
    return std::chrono::seconds(5);
  }

 private:
  std::string address_;
  std::unique_ptr<EtcdObserver> observer_;
};

std::unique_ptr<launch::ControlPlane> start_control(const LaunchFlags& flags,
                                                    const launch::ControlRequest& request) {
  if (!flags.rendezvous.empty()) {
    return std::make_unique<EtcdControl>(flags.rendezvous, request, tls_of(flags.tls));
  }
  try {
    return std::make_unique<ServedControl>(request, tls_of(flags.tls));
  } catch (const UsageError& error) {
    if (flags.bind.empty()) throw;
    fail<UsageError>("--bind {}: {}", flags.bind, error.what());
  }
}

PortRange ports_of(const LaunchFlags& flags) {
  return flags.port_range.empty() ? PortRange{}
                                  : parse_port_range(flags.port_range, "--port-range");
}

// What flags say takes the place of this process's variables. Workers get the names of files; each
// reads its own host's.
launch::Variables variables_of(const LaunchFlags& flags) {
  launch::Variables variables = variables_for_all(flags.env);
  const auto set = [&](const std::string& name, const std::string& value) {
    if (value.empty()) return;
    std::erase_if(variables, [&](const auto& each) { return each.first == name; });
    variables.emplace_back(name, value);
  };
  const TlsFiles tls = tls_of(flags.tls);
  set(kTlsCertificateVariable, tls.certificate);
  set(kTlsKeyVariable, tls.key);
  set(kTlsAuthorityVariable, tls.authority);
  ports_of(flags);  // throws where it is none
  set(kPortRangeVariable, flags.port_range);
  return variables;
}

launch::LaunchOptions launch_options(const LaunchFlags& flags) {
  require(!flags.program.empty(),
          "name the program that the workers run: lockstep launch --workers 2 -- program");
  return {.seats = launch::seat_workers(flags.workers, launch::parse_hosts(flags.hosts)),
          .program = flags.program,
          .folder = working_folder(),
          .environment = own_environment(),
          .variables = variables_of(flags),
          .ssh = words_of(flags.ssh),
          .cores_per_worker = flags.cores_per_worker,
          .bind = flags.bind,
          .ports = ports_of(flags),
          .grace = duration_of("--grace", flags.grace),
          .outlived = !flags.rendezvous.empty(),
          .on_failure = flags.on_failure == "restart"  ? OnFailure::Restart
                        : flags.on_failure == "shrink" ? OnFailure::Shrink
                                                       : OnFailure::Stop,
          .heartbeat_timeout = duration_of("--heartbeat-timeout", flags.heartbeat_timeout),
          .log_folder = flags.log_dir,
          .start_control = [flags](const launch::ControlRequest& request) {
            return start_control(flags, request);
          }};
}

// The width of the terminal behind standard output; 0: it is none.
int terminal_columns() {
  winsize size = {};
  if (isatty(STDOUT_FILENO) == 0) return 0;
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
}

// A failed write is reported at the end, as for all commands.
void write_now(std::FILE* stream, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

Json result_json(const launch::LaunchOptions& options, const launch::JobResult& result) {
  Json json;
  json["exit_code"] = result.exit_code;
  json["first_failure"] = nullptr;
  if (!result.cause.empty()) {
    json["first_failure"] = {{"worker", result.first_failure}, {"cause", result.cause}};
  }
  json["stopped_by"] = nullptr;
  if (result.stopped_by != 0) json["stopped_by"] = result.stopped_by;
  json["lost"] = Json::array();
  for (const launch::LostWorker& lost : result.lost) {
    json["lost"].push_back({{"worker", lost.worker}, {"cause", lost.cause}});
  }
  json["workers"] = Json::array();
  for (const launch::Seat& seat : options.seats) {
    const launch::End& end = result.ends[static_cast<std::size_t>(seat.worker)];
    json["workers"].push_back({{"worker", seat.worker},
                               {"host", seat.host},
                               {"exit_code", end.exit_code()},
                               {"signal", end.signal}});
  }
  return json;
}

void run_launch(const LaunchFlags& flags) {
  const launch::LaunchOptions options = launch_options(flags);
  check_target("--json", flags.json);
  // Only the result may be on standard output then.
  std::FILE* out = is_standard_output(flags.json) ? stderr : stdout;
  const launch::JobResult result =
      launch::run_job(options, {.out = [out](std::string_view text) { write_now(out, text); },
                                .err = [](std::string_view text) { write_now(stderr, text); },
                                .columns = terminal_columns()});
  write_json(result_json(options, result), flags.json);
  if (result.exit_code != 0) throw ExitCode{result.exit_code};
}

}  // namespace

void add_launch(Program& program) {
  Command app = program.add_command(
      "launch",
      "Starts the workers of a job, here or on other hosts: launch --workers 2 -- program");
  auto flags = std::make_shared<LaunchFlags>();
  app.add_option("--workers", flags->workers, "how many workers to start (one per slot or host)")
      .check(whole_number(1, kMostWorkers));
  app.add_option("--hosts", flags->hosts,
                 "where: a,b (in blocks, as evenly as possible) or a:4,b:2 (how many each takes); "
                 "localhost is this host, all others are reached by ssh (localhost)")
      .delimiter(',');
  app.add_option(
         "--on-failure", flags->on_failure,
         "what a worker's failure means for the others; stop: they are ended; restart: it is "
         "started again, and all go on from the last copy of their state; shrink: the "
         "others go on without it")
      .check(one_of({"stop", "restart", "shrink"}))
      .capture_default_str();
  app.add_option("--heartbeat-timeout", flags->heartbeat_timeout,
                 "how long a worker may be silent before it counts as failed: 500ms, 5s")
      .capture_default_str();
  app.add_option("--rendezvous", flags->rendezvous,
                 "where the workers meet: etcd://host:port,host:port[/job] (the launcher)");
  app.add_option("--port-range", flags->port_range,
                 "ports that the control plane and the workers may listen on: 29500-29600 (any)");
  app.add_option("--bind", flags->bind,
                 "the address that the control plane listens on (127.0.0.1, or with other hosts "
                 "that of the interface that leads to the first)");
  app.add_option("--grace", flags->grace,
                 "how long workers have to end after a signal or a failure: 500ms, 25s, 2m")
      .capture_default_str();
  app.add_option("--cores-per-worker", flags->cores_per_worker,
                 "cores of each worker (the host's cores, divided evenly)")
      .check(whole_number(1, kMostCores));
  app.add_option("--log-dir", flags->log_dir,
                 "write all that worker 2 writes to worker-2.log in this folder");
  app.add_option("--env", flags->env,
                 "NAME or NAME=VALUE, once per variable: also set on other hosts, which otherwise "
                 "get only variables whose names begin with LOCKSTEP_");
  app.add_option("--ssh", flags->ssh,
                 "the command that runs a shell line on a host: 'ssh -p 2222'; it must not ask for "
                 "a password")
      .capture_default_str();
  add_tls(app, flags->tls);
  app.add_option("--json", flags->json,
                 "write how the workers ended to this file (-: standard "
                 "output; workers' output then goes to standard error)");
  app.footer(kLaunchNotes);
  program.take_rest("launch", flags->program);
  app.callback([flags] { run_launch(*flags); });
}

}  // namespace lockstep::cli
