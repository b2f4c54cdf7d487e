#include "lockstep/data/records.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/data/sources/record_files.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

Element bytes_element(std::string_view bytes) {
  return {Tensor::of(std::span(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()),
                     {std::ssize(bytes)})};
}

const ElementSpec kBytes{.dtype = DType::U8, .shape = {0}, .varies = true};

std::vector<ElementSpec> parsed_spec(const std::vector<FeatureSpec>& features) {
  std::vector<ElementSpec> spec;
  for (const FeatureSpec& feature : features) {
    if (feature.length != FeatureLength::Variable) {
      spec.push_back({.dtype = feature.dtype, .shape = feature.shape});
      continue;
    }
    std::vector<std::int64_t> dims{0};
    dims.insert(dims.end(), feature.shape.dims().begin(), feature.shape.dims().end());
    spec.push_back({.dtype = feature.dtype, .shape = Shape(std::move(dims)), .varies = true});
  }
  return spec;
}

// Reads options.cycle files in turn, each as the data set that `open` returns for it.
Dataset in_turns(std::vector<fs::path> files, const RecordFilesOptions& options,
                 std::function<Dataset(const std::vector<fs::path>&)> open) {
  const std::int64_t count = std::ssize(files);
  return Dataset(make_file_list(make_range(count), FileAccess::Records))
      .interleave(
          [files = std::move(files), open = std::move(open)](const Element& element) {
            const auto number = static_cast<std::size_t>(element.front().values<std::int64_t>()[0]);
            return open({files[number]});
          },
          {.cycle = options.cycle, .parallel = options.parallel});
}

// All files one after the other, or several in turn.
template <class Reader>
Dataset over_files(std::vector<fs::path> files, const RecordFilesOptions& options,
                   const RecordFormat<Reader>& format) {
  require(!files.empty(), "[{}] there are no files to read", format.name);
  require(options.cycle > 0, "[{}] .cycle must be at least 1, not {}", format.name, options.cycle);
  const auto open = [format](const std::vector<fs::path>& some) {
    return Dataset(std::make_shared<RecordFilesNode<Reader>>(some, format));
  };
  return options.cycle == 1 ? open(files) : in_turns(std::move(files), options, open);
}

}  // namespace

std::vector<fs::path> files_in(const fs::path& folder, const std::vector<std::string>& endings) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const bool wanted = std::ranges::any_of(
        endings, [&](const std::string& ending) { return name.ends_with(ending); });
    if (wanted && entry.is_regular_file()) files.push_back(entry.path());
  }
  if (error) fail<DataError>("{}: cannot be read: {}", folder.string(), error.message());
  if (files.empty()) {
    fail<DataError>("{}: there is no file in it that ends in {}", folder.string(),
                    fmt::join(endings, " or "));
  }
  std::ranges::sort(files);
  return files;
}

Dataset read_tfrecords(std::vector<fs::path> files, RecordFilesOptions options,
                       TFRecordOptions format) {
  return over_files<TFRecordReader>(
      std::move(files), options,
      {.name = "tfrecord",
       .spec = {kBytes},
       .on_error = options.on_error,
       .open = [format](
                   const fs::path& file) { return std::make_unique<TFRecordReader>(file, format); },
       .next = [](TFRecordReader& reader) -> std::optional<Element> {
         const std::optional<std::string_view> record = reader.next();
         if (!record) return std::nullopt;
         return bytes_element(*record);
       }});
}

Dataset read_text_lines(std::vector<fs::path> files, RecordFilesOptions options,
                        TextOptions format) {
  return over_files<LineReader>(
      std::move(files), options,
      {.name = "text",
       .spec = {kBytes},
       .on_error = options.on_error,
       .open =
           [format](const fs::path& file) { return std::make_unique<LineReader>(file, format); },
       .next = [](LineReader& reader) -> std::optional<Element> {
         const std::optional<std::string_view> line = reader.next();
         if (!line) return std::nullopt;
         return bytes_element(*line);
       }});
}

Dataset read_csv(std::vector<fs::path> files, RecordFilesOptions options, CsvOptions format) {
  require(!files.empty(), "[csv] there are no files to read");
  const CsvReader first(files.front(), format);
  std::vector<ElementSpec> spec;
  for (std::size_t i = 0; i < first.components(); ++i) {
    spec.push_back(first.shape(i) ? ElementSpec{.dtype = first.dtype(i), .shape = *first.shape(i)}
                                  : kBytes);
  }
  return over_files<CsvReader>(
      std::move(files), options,
      {.name = "csv",
       .spec = std::move(spec),
       .on_error = options.on_error,
       .open = [format](const fs::path& file) { return std::make_unique<CsvReader>(file, format); },
       .next = [](CsvReader& reader) -> std::optional<Element> {
         std::optional<std::vector<Tensor>> row = reader.next();
         if (!row) return std::nullopt;
         return Element(std::move(*row));
       }});
}

Dataset read_examples(std::vector<fs::path> files, std::vector<FeatureSpec> features,
                      RecordFilesOptions options, TFRecordOptions format) {
  require(!files.empty(), "[examples] there are no files to read");
  const std::vector<ElementSpec> spec = parsed_spec(features);
  const auto parser = std::make_shared<const ExampleParser>(std::move(features));
  const auto parsed = [=](const std::vector<fs::path>& some) {
    return read_tfrecords(some, {.on_error = options.on_error}, format)
        .map(
            [parser, some](const Element& element) -> Element {
              const Tensor& record = element.front();
              const std::string_view bytes(reinterpret_cast<const char*>(record.raw()),
                                           record.bytes());
              const std::uint64_t number = element.sample.number;
              return parser->parse(bytes, some[number / kRecordsOfAFile].string(),
                                   static_cast<std::int64_t>(number % kRecordsOfAFile));
            },
            {.spec = spec,
             .parallel = options.cycle == 1 ? options.parallel : 1,
             .on_error = options.on_error,
             .name = "parse"});
  };
  return options.cycle == 1 ? parsed(files) : in_turns(std::move(files), options, parsed);
}

namespace datasets {

Dataset image_examples(std::vector<fs::path> files, RecordFilesOptions options) {
  require(!files.empty(), "[image examples] there are no files to read");
  TFRecordReader first(files.front());
  const std::optional<std::string_view> record = first.next();
  if (!record) fail<DataError>("{}: the file has no records", files.front().string());
  std::string why;
  for (const char* image : {"image/encoded", "image", "image_raw"}) {
    for (const char* label : {"image/class/label", "label"}) {
      const std::vector<FeatureSpec> features{
          {.name = image, .dtype = DType::U8, .length = FeatureLength::Variable},
          {.name = label, .dtype = DType::I32}};
      try {
        const auto parsed = ExampleParser(features).parse(*record, files.front().string(), 0);
        if (parsed.front().bytes() == 0) continue;
      } catch (const DataError& error) {
        why = error.what();
        continue;
      }
      return read_examples(std::move(files), features, options);
    }
  }
  fail<DataError>("{}: the first record has no encoded image with a label{}{}",
                  files.front().string(), why.empty() ? "" : ": ", why);
}

}  // namespace datasets
}  // namespace lockstep
