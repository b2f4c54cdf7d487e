// Folders of pictures as data sets.
#include <fstream>

#include "conformance/driver/case.h"
#include "temporary_folder.h"

namespace conformance {
namespace {

ls::LabelMode label_mode_of(const Case& c) {
  const std::string mode = c.option<std::string>("label_mode", "int");
  if (mode == "categorical") return ls::LabelMode::Categorical;
  if (mode == "binary") return ls::LabelMode::Binary;
  return mode == "none" ? ls::LabelMode::None : ls::LabelMode::Int;
}

ls::Tensor text(const std::vector<std::string>& lines) {
  std::vector<std::uint8_t> bytes;
  for (const std::string& line : lines) {
    bytes.insert(bytes.end(), line.begin(), line.end());
    bytes.push_back('\n');
  }
  return ls::Tensor::of(bytes, ls::Shape{static_cast<std::int64_t>(bytes.size())});
}

}  // namespace

// Inputs: the bytes of files (u8), named by path; paths that end in "/" are empty folders. Results:
// images and labels of all batches, the classes, and the files in order.
Tensors run_folder(const Case& c) {
  const ls::TemporaryFolder folder;
  for (const auto& [name, bytes] : c.inputs) {
    const std::filesystem::path file = folder / name;
    std::filesystem::create_directories(name.ends_with("/") ? file : file.parent_path());
    if (name.ends_with("/")) continue;
    std::ofstream(file, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.raw()),
               static_cast<std::streamsize>(bytes.bytes()));
  }
  ls::ImageDirectoryOptions options;
  options.label_mode = label_mode_of(c);
  if (options.label_mode == ls::LabelMode::None) options.labels = ls::ImageLabels::None;
  options.class_names = c.option("class_names", options.class_names);
  options.color_mode = ls::color_mode_named(c.option<std::string>("color_mode", "rgb"));
  options.batch_size = c.option("batch_size", std::int64_t{32});
  options.height = c.option("height", options.height);
  options.width = c.option("width", options.width);
  options.shuffle = false;
  options.validation_split = c.option("validation_split", 0.0);
  const std::string subset = c.option<std::string>("subset", "");
  if (subset == "training") options.subset = ls::Subset::Training;
  if (subset == "validation") options.subset = ls::Subset::Validation;
  options.interpolation =
      ls::interpolation_named(c.option<std::string>("interpolation", "bilinear"));
  options.reader.fast_dct = c.option("fast_dct", false);
  options.reader.scaled_decoding = c.option("scaled_decoding", options.reader.scaled_decoding);
  options.crop_to_aspect_ratio = c.option("crop_to_aspect_ratio", false);

  const ls::ImageDirectory directory = ls::image_dataset_from_directory(folder.path(), options);
  std::vector<ls::Tensor> images, labels;
  for (const ls::Element& batch : directory.dataset) {
    images.push_back(batch[0].clone());
    if (batch.size() > 1) labels.push_back(batch[1].clone());
  }
  std::vector<std::string> files;
  for (const auto& file : directory.files) {
    files.push_back(std::filesystem::relative(file, folder.path()).string());
  }
  Tensors results = {{"images", ls::concatenate_rows(images, "conformance")},
                     {"batches", ls::Tensor::scalar(static_cast<std::int64_t>(images.size()))},
                     {"files", text(files)}};
  if (!labels.empty()) {
    results.emplace("labels", ls::concatenate_rows(labels, "conformance"));
    results.emplace("classes", text(directory.class_names));
  }
  return results;
}

}  // namespace conformance
