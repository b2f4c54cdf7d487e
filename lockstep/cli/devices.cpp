// lockstep devices: lists the devices, and which backends are missing and why. With --cluster, also
// the links between the workers of a job.
#include <fmt/core.h>

#include <fstream>
#include <optional>

#include "lockstep/cli/cluster_links.h"
#include "lockstep/cli/command.h"
#include "lockstep/cli/format.h"
#include "lockstep/device/cpu/memory.h"
#include "lockstep/device/cuda/cuda_device.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/kernels/kernel.h"

namespace lockstep::cli {
namespace {

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

// The widest vector instructions of the processor, as oneDNN names them.
std::string vector_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) {
    return __builtin_cpu_supports("avx512bf16") ? "avx512 with bf16" : "avx512";
  }
  if (__builtin_cpu_supports("avx2")) return "avx2";
  if (__builtin_cpu_supports("avx")) return "avx";
  return "sse2";
#elif defined(__aarch64__)
  return "neon";
#else
  return "unknown";
#endif
}

// The kernel that computes a plain matrix product: oneDNN's wherever oneDNN is there.
bool has_onednn() {
  Graph graph;
  const Value a = graph.input("a", {DType::F32, {8, 8}});
  const Value product = matmul(a, a);
  return cpu_kernels().find({graph, graph.producer(product.id())}).name.starts_with("onednn");
}

struct Missing {
  std::string backend;
  std::string why;
};

std::vector<Missing> missing_backends() {
  std::vector<Missing> missing;
  if (!has_onednn()) {
    missing.push_back({"onednn",
                       "not found when Lockstep was built: install libdnnl-dev and build again "
                       "(until then the slow reference kernels are used)"});
  }
  const GpuInventory inventory = find_gpus();
  if (inventory.gpus.empty()) missing.push_back({"cuda", inventory.why_none});
  return missing;
}

struct DevicesOptions {
  bool cluster = false;
  TlsFiles tls;
  std::string json;
};

void run(const DevicesOptions& options) {
  const std::string& json_target = options.json;
  check_target("--json", json_target);
  std::optional<ClusterLinks> links;
  if (options.cluster) links = measure_cluster_links(tls_of(options.tls));
  if (links && !links->chief) return;
  const std::unique_ptr<CpuDevice> device = std::move(make_cpu_devices(1).front());
  const auto missing = missing_backends();

  Json json;
  json["devices"] = Json::array({{{"name", device->name()},
                                  {"kind", "cpu"},
                                  {"cores", device->cores().size()},
                                  {"memory_bytes", machine_memory()},
                                  {"isa", vector_isa()},
                                  {"processor", processor()},
                                  {"kernels", has_onednn() ? "onednn, reference" : "reference"}}});
  const std::vector<Gpu> gpus = find_gpus().gpus;
  for (const Gpu& gpu : gpus) {
    json["devices"].push_back({{"name", fmt::format("cuda:{}", gpu.index)},
                               {"kind", "cuda"},
                               {"memory_bytes", gpu.memory_bytes},
                               {"model", gpu.model},
                               {"compute_capability", fmt::format("{}.{}", gpu.major, gpu.minor)},
                               {"multiprocessors", gpu.multiprocessors}});
  }
  json["missing"] = Json::array();
  for (const Missing& backend : missing) {
    json["missing"].push_back({{"backend", backend.backend}, {"why", backend.why}});
  }

  if (links) {
    json["workers"] = Json::array();
    for (const std::string& host : links->hosts) json["workers"].push_back({{"host", host}});
    json["links"] = links_json(*links);
  }

  if (!is_standard_output(json_target)) {
    fmt::print("{:<8}{:<6}{:>5} cores{:>12}  {}  {}\n", device->name(), "cpu",
               device->cores().size(), bytes_text(static_cast<double>(machine_memory())),
               vector_isa(), processor());
    for (const Gpu& gpu : gpus) {
      fmt::print("{:<8}{:<6}{:>5} SMs  {:>12}  {}, compute capability {}.{}\n",
                 fmt::format("cuda:{}", gpu.index), "cuda", gpu.multiprocessors,
                 bytes_text(static_cast<double>(gpu.memory_bytes)), gpu.model, gpu.major,
                 gpu.minor);
    }
    for (const Missing& backend : missing) {
      fmt::print("{:<8}missing: {}\n", backend.backend, backend.why);
    }
    if (links) fmt::print("\n{}", links_text(*links));
  }
  write_json(json, json_target);
}

}  // namespace

void add_devices(Program& program) {
  Command app = program.add_command("devices", "Lists the devices of this machine.");
  auto options = std::make_shared<DevicesOptions>();
  app.add_flag("--cluster", options->cluster,
               "as one of several workers: also measure the link between each two of them (started "
               "by lockstep launch, srun, mpirun, …)");
  add_tls(app, options->tls);
  app.add_option("--json", options->json, "write the list to this file (-: standard output)");
  app.callback([options] { run(*options); });
}

}  // namespace lockstep::cli
