// TF_CONFIG: the tasks of a cluster by their addresses, as JSON.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/json_depth.h"
#include "lockstep/cluster/address.h"
#include "lockstep/cluster/in_quotes.h"
#include "lockstep/cluster/resolvers.h"
#include "lockstep/cluster/resolvers/launched.h"

namespace lockstep {
namespace {

using nlohmann::json;

// The tasks of each type that a cluster may have.
struct Tasks {
  std::vector<Address> chief;
  std::vector<Address> worker;
  std::vector<Address> ps;
  std::vector<Address> evaluator;

  // None for a type that does not exist.
  std::vector<Address>* of(std::string_view type) {
    if (type == "chief" || type == "master") return &chief;
    if (type == "worker") return &worker;
    if (type == "ps") return &ps;
    return type == "evaluator" ? &evaluator : nullptr;
  }
};

template <class... Args>
[[noreturn]] void reject_config(fmt::format_string<Args...> format, Args&&... args) {
  fail<UsageError>("TF_CONFIG: {}", fmt::format(format, std::forward<Args>(args)...));
}

json parsed_config(const std::string& text) {
  if (nests_too_deep(text)) reject_config("nests deeper than {} brackets", kMaxJsonDepth);
  json config;
  try {
    config = json::parse(text);
  } catch (const json::exception& error) {
    reject_config("{} is not JSON: {}", in_quotes(text), in_quotes(error.what()));
  }
  if (!config.is_object()) {
    reject_config(R"({} is not an object: write {{"cluster": …, "task": …}})", in_quotes(text));
  }
  return config;
}

// JSON as text, for messages; bytes that are not UTF-8 are replaced.
std::string shown(const json& value) {
  return in_quotes(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

std::vector<Address> addresses_of(const std::string& type, const json& list) {
  if (!list.is_array()) {
    reject_config(R"("{}" is {}, not a list of addresses: write ["host:port", …])", type,
                  shown(list));
  }
  std::vector<Address> addresses;
  for (const json& item : list) {
    const std::string what = fmt::format("TF_CONFIG: \"{}\" {}", type, addresses.size());
    if (!item.is_string()) reject_config("\"{}\" has {}, not \"host:port\"", type, shown(item));
    addresses.push_back(parse_address(item.get<std::string>(), what));
  }
  return addresses;
}

void check_cluster(const Tasks& tasks) {
  if (tasks.chief.size() > 1) {
    reject_config("the cluster has {} chiefs ({}, {}): it can have one; make the others workers",
                  tasks.chief.size(), tasks.chief[0].text(), tasks.chief[1].text());
  }
  if (tasks.chief.empty() && tasks.worker.empty()) {
    reject_config(
        R"(the cluster has neither a "chief" nor a "worker": add "worker": ["host:port"])");
  }
  std::map<std::string, const char*> seen;
  const auto check = [&](const char* type, const std::vector<Address>& addresses) {
    for (const Address& address : addresses) {
      const auto [place, added] = seen.emplace(address.text(), type);
      if (!added) {
        reject_config("{} is the address of a {} and of a {}: each task needs its own",
                      place->first, place->second, type);
      }
    }
  };
  check("chief", tasks.chief);
  check("worker", tasks.worker);
  check("ps", tasks.ps);
  check("evaluator", tasks.evaluator);
}

Tasks tasks_of(const json& cluster) {
  if (!cluster.is_object()) {
    reject_config(R"("cluster" is {}: write {{"worker": ["host:port", …]}})", shown(cluster));
  }
  if (cluster.contains("chief") && cluster.contains("master")) {
    reject_config(R"(the cluster has a "chief" and a "master", which mean the same: remove one)");
  }
  Tasks tasks;
  for (const auto& [type, list] : cluster.items()) {
    std::vector<Address>* const addresses = tasks.of(type);
    if (addresses == nullptr) {
      reject_config("{} is not a type of task: there are chief, worker, ps and evaluator",
                    in_quotes(type));
    }
    *addresses = addresses_of(type, list);
  }
  check_cluster(tasks);
  return tasks;
}

// Which task this process is.
struct Task {
  std::string type;
  int index = 0;
};

// A number, or a number as a string, which TensorFlow takes, too.
int index_of(const json& index) {
  std::string digits;
  if (index.is_string()) digits = index.get<std::string>();
  if (index.is_number_unsigned()) digits = index.dump();
  const bool good = !digits.empty() && digits.size() <= 7 &&
                    std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
  if (!good) reject_config("\"index\" is {}: give a whole number from 0", shown(index));
  return std::stoi(digits);
}

Task task_of(const json& config, Tasks& tasks) {
  constexpr const char* kExample = R"("task": {"type": "worker", "index": 0})";
  const auto found = config.find("task");
  if (found == config.end() || !found->is_object() || found->empty()) {
    reject_config("it has a \"cluster\", but no \"task\": add which of them this process is, {}",
                  kExample);
  }
  const auto type = found->find("type");
  const auto index = found->find("index");
  if (type == found->end() || !type->is_string()) {
    reject_config("\"task\" {} has no \"type\": write {}", shown(*found), kExample);
  }
  Task task{.type = type->get<std::string>()};
  std::vector<Address>* const addresses = tasks.of(task.type);
  if (addresses == nullptr) {
    reject_config("the task's type {} does not exist: there are chief, worker, ps and evaluator",
                  in_quotes(task.type));
  }
  if (index == found->end()) {
    reject_config("\"task\" {} has no \"index\": write {}", shown(*found), kExample);
  }
  task.index = index_of(*index);
  if (addresses == &tasks.evaluator && addresses->empty()) return task;  // need not be in it
  const auto count = static_cast<int>(addresses->size());
  if (count == 0) {
    reject_config(R"(this process is {} {}, but the cluster has no "{}": add its address there)",
                  task.type, task.index, task.type);
  }
  if (task.index >= count) {
    reject_config("this process is {} {}, but the cluster has {} of them, from 0 to {}", task.type,
                  task.index, count, count - 1);
  }
  return task;
}

// Workers have a number among those whose address has the same host.
void set_local_by_host(ClusterSpec& spec, const std::vector<Address>& workers) {
  const auto same_host = [&](const Address& other) {
    return other.host == workers[static_cast<std::size_t>(spec.worker)].host;
  };
  spec.local_worker =
      static_cast<int>(std::count_if(workers.begin(), workers.begin() + spec.worker, same_host));
  spec.local_workers = static_cast<int>(std::ranges::count_if(workers, same_host));
}

}  // namespace

std::optional<ClusterSpec> TFConfigResolver::resolve() const {
  const auto text = environment_.find("TF_CONFIG");
  if (!text) return std::nullopt;
  const json config = parsed_config(*text);
  const auto cluster = config.find("cluster");
  if (cluster == config.end() || cluster->empty()) return std::nullopt;
  Tasks tasks = tasks_of(*cluster);
  const Task task = task_of(config, tasks);

  std::vector<Address> workers = tasks.chief;
  workers.insert(workers.end(), tasks.worker.begin(), tasks.worker.end());
  ClusterSpec spec{.started_by = name(),
                   .role = Role::Worker,
                   .worker = task.index,
                   .workers = static_cast<int>(workers.size())};
  if (task.type == "evaluator") {
    spec.role = Role::Evaluator;
    return spec;
  }
  if (workers.size() > 1 || !tasks.ps.empty()) spec.control_address = workers.front().text();
  if (task.type == "ps") {
    spec.role = Role::ParameterServer;
    return spec;
  }
  if (task.type == "worker") spec.worker += static_cast<int>(tasks.chief.size());
  if (spec.worker == 0) {
    spec.role = Role::Chief;
    spec.serves_control = !spec.control_address.empty();
  }
  spec.can_restart = spec.can_shrink = true;
  set_local_by_host(spec, workers);
  return spec;
}

}  // namespace lockstep
