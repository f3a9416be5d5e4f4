// Runs an ONNX file in Node.js.
//
//   node node_runner.cjs MODEL.onnx INPUTS.json OUTPUTS.json
//
// Inputs and outputs: {"name": {"type": "float32", "dims": [2, 1], "data": []}}
// onnxruntime-node is found through NODE_PATH.

const fs = require("node:fs");
const { InferenceSession, Tensor } = require("onnxruntime-node");

const ARRAYS = {
  bool: Uint8Array,
  float32: Float32Array,
  float64: Float64Array,
  int32: Int32Array,
  int64: BigInt64Array,
  uint8: Uint8Array,
};

function toTensor({ type, dims, data }) {
  if (type === "string") return new Tensor(type, data, dims);
  const numbers = type === "int64" ? data.map(BigInt) : data;
  return new Tensor(type, ARRAYS[type].from(numbers), dims);
}

function fromTensor({ type, dims, data }) {
  const numbers = type === "int64" ? Array.from(data, Number) : [...data];
  return { type, dims, data: numbers };
}

function mapValues(object, change) {
  const changed = Object.entries(object).map(([k, v]) => [k, change(v)]);
  return Object.fromEntries(changed);
}

async function main([model, inputs, outputs]) {
  const options = { intraOpNumThreads: 1, interOpNumThreads: 1 };
  const session = await InferenceSession.create(model, options);
  const feeds = mapValues(JSON.parse(fs.readFileSync(inputs)), toTensor);
  const results = mapValues(await session.run(feeds), fromTensor);
  fs.writeFileSync(outputs, JSON.stringify(results));
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
