// lockstep predict: classifies pictures with a trained run.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/cli/command.h"
#include "lockstep/cli/number.h"
#include "lockstep/cli/trained_run.h"
#include "lockstep/data/image/map_images.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

struct PredictOptions {
  std::string run;
  std::vector<std::string> inputs;
  std::int64_t top = 3;
  Placement placement;
  std::int64_t batch = 64;
  std::string json;
};

bool is_picture(const fs::path& file) {
  std::string ending = file.extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

struct Pictures {
  std::vector<fs::path> files;
  std::vector<std::int64_t> named;  // files that the user named: each must be readable
  std::vector<std::int64_t> found;  // files in folders: what cannot be read is skipped
};

// Named files in their order, and the pictures in folders, sorted.
Pictures find_pictures(const std::vector<std::string>& inputs) {
  Pictures pictures;
  std::vector<fs::path>& files = pictures.files;
  for (const std::string& input : inputs) {
    require(fs::exists(input), "{}: there is no such file or folder", input);
    if (!fs::is_directory(input)) {
      pictures.named.push_back(std::ssize(files));
      files.emplace_back(input);
      continue;
    }
    const auto begin = std::ssize(files);
    for (const auto& entry : fs::recursive_directory_iterator(input)) {
      if (entry.is_regular_file() && is_picture(entry.path())) files.push_back(entry.path());
    }
    require(std::ssize(files) > begin, "{}: there is no JPEG or PNG file in this folder", input);
    std::sort(files.begin() + begin, files.end());
    for (auto i = begin; i < std::ssize(files); ++i) pictures.found.push_back(i);
  }
  return pictures;
}

struct Guess {
  std::size_t label = 0;
  double probability = 0;
};

// The `top` classes with the largest probabilities, from the logits of one sample.
std::vector<Guess> best_guesses(std::span<const float> logits, std::size_t top) {
  const double most = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - most);
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  top = std::min(top, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(top), order.end(),
                    [&](std::size_t a, std::size_t b) {
                      return std::pair(-logits[a], a) < std::pair(-logits[b], b);
                    });
  std::vector<Guess> guesses;
  for (std::size_t i = 0; i < top; ++i) {
    guesses.push_back({order[i], std::exp(logits[order[i]] - most) / sum});
  }
  return guesses;
}

using Guesses = std::vector<std::vector<Guess>>;  // per file; empty if it could not be read

// Fills in the guesses for the files at the indices `chosen`.
void guess(TrainedRun& run, const std::vector<fs::path>& files,
           const std::vector<std::int64_t>& chosen, OnError on_error, const PredictOptions& options,
           Guesses& guesses) {
  if (chosen.empty()) return;
  const ImageReaderOptions reader = testing_reader(run);
  const Tensor numbers = Tensor::of(std::span(chosen), {std::ssize(chosen)});
  const Dataset batches = Dataset::from_tensor_slices({numbers, numbers})
                              .map_into(read_image_files(files, reader),
                                        {.spec = decoded_spec(reader, {{DType::I64, {}}}),
                                         .parallel = AUTOTUNE,
                                         .on_error = on_error,
                                         .name = "decode"})
                              .batch(options.batch)
                              .prefetch();
  for (const Element& batch : batches) {
    const Tensor logits = run.model.predict_on_batch(batch[0]);
    const auto values = logits.values<float>();
    const auto classes = static_cast<std::size_t>(logits.shape()[-1]);
    const auto places = batch[1].values<std::int64_t>();
    for (std::size_t i = 0; i < places.size(); ++i) {
      guesses[static_cast<std::size_t>(places[i])] =
          best_guesses(values.subspan(i * classes, classes), static_cast<std::size_t>(options.top));
    }
  }
}

Guesses guess_all(TrainedRun& run, const Pictures& pictures, const PredictOptions& options) {
  Guesses guesses(pictures.files.size());
  guess(run, pictures.files, pictures.named, OnError::Raise, options, guesses);
  guess(run, pictures.files, pictures.found, OnError::Skip, options, guesses);
  const bool none = std::ranges::all_of(guesses, [](const auto& each) { return each.empty(); });
  if (none) {
    fail<DataError>("none of the {} files is a readable picture; the first is {}", guesses.size(),
                    pictures.files.front().string());
  }
  return guesses;
}

void run(const PredictOptions& options) {
  check_target("--json", options.json);
  const Pictures pictures = find_pictures(options.inputs);
  const std::vector<fs::path>& files = pictures.files;
  TrainedRun trained = open_run({.run = options.run, .placement = options.placement});
  const auto guesses = guess_all(trained, pictures, options);
  const auto name_of = [&](std::size_t label) {
    return label < trained.class_names.size() ? trained.class_names[label] : std::to_string(label);
  };
  Json predictions = Json::array();
  Json unread = Json::array();
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string file = files[i].string();
    if (guesses[i].empty()) {
      unread.push_back(file);
      continue;
    }
    Json classes = Json::array();
    std::string text;
    for (const Guess& guess : guesses[i]) {
      const std::string name = name_of(guess.label);
      classes.push_back({{"name", name}, {"probability", guess.probability}});
      text += fmt::format("  {} {:.1f}%", name, 100 * guess.probability);
    }
    if (!is_standard_output(options.json)) fmt::print("{}:{}\n", file, text);
    predictions.push_back({{"input", file}, {"classes", std::move(classes)}});
  }
  Json json = {{"predictions", std::move(predictions)}};
  if (!unread.empty()) {
    fmt::print(stderr,
               "lockstep: warning: skipped {} of {} files, which are not readable pictures; "
               "the first is {}\n",
               unread.size(), files.size(), unread.front().get_ref<const std::string&>());
    json["unread"] = std::move(unread);
  }
  write_json(json, options.json);
}

}  // namespace

void add_predict(Program& program) {
  Command app = program.add_command("predict", "Classifies pictures with a trained run.");
  auto options = std::make_shared<PredictOptions>();
  app.add_option("run", options->run, "a run's folder (runs/last), or a checkpoint in it")
      .required();
  app.add_option("inputs", options->inputs, "pictures (JPEG, PNG), or folders of them").required();
  app.add_option("--top", options->top, "classes to show per picture")
      .capture_default_str()
      .check(whole_number(1, 1'000'000));
  add_placement(app, options->placement);
  app.add_option("--batch", options->batch, "pictures per batch")
      .capture_default_str()
      .check(whole_number(1, 1'000'000));
  app.add_option("--json", options->json, "write the result to this file (-: standard output)");
  app.callback([options] { run(*options); });
}

}  // namespace lockstep::cli
