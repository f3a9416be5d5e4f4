"""What the paper reports (Wang et al. 2021, tables 1 to 3).

Test error in percent, mean and standard deviation of five runs, or None where
it gives none. Hours on an Nvidia Tesla P40 for table 2.
"""

Figure = tuple[float, float | None]

# (model, dataset) -> method -> error.
TABLE1: dict[tuple[str, str], dict[str, Figure]] = {
    ("resnet110", "cifar10"): {
        "single": (5.63, None),
        "sse": (5.41, None),
        "ssb": (5.61, None),
        "fge": (5.50, None),
        "cbnn": (5.25, None),
    },
    ("resnet110", "cifar100"): {
        "single": (27.67, 0.25),
        "sse": (24.27, 0.26),
        "ssb": (27.09, 0.35),
        "fge": (26.21, 0.23),
        "cbnn": (23.51, 0.20),
    },
    ("resnet110", "tiny-imagenet"): {
        "single": (45.10, 0.36),
        "sse": (39.08, 0.34),
        "ssb": (43.68, 0.49),
        "fge": (41.16, 0.31),
        "cbnn": (38.14, 0.22),
    },
    ("densenet40", "cifar10"): {
        "single": (5.13, None),
        "sse": (4.78, None),
        "ssb": (5.13, None),
        "fge": (4.82, None),
        "cbnn": (4.78, None),
    },
    ("densenet40", "cifar100"): {
        "single": (23.15, 0.22),
        "sse": (21.45, 0.29),
        "ssb": (22.59, 0.31),
        "fge": (22.07, 0.28),
        "cbnn": (20.66, 0.17),
    },
    ("densenet40", "tiny-imagenet"): {
        "single": (38.24, 0.34),
        "sse": (36.35, 0.30),
        "ssb": (37.99, 0.44),
        "fge": (37.72, 0.27),
        "cbnn": (34.28, 0.20),
    },
    ("efficientnet-b0", "cifar10"): {
        "single": (3.88, None),
        "sse": (3.56, None),
        "ssb": (3.87, None),
        "fge": (3.68, None),
        "cbnn": (3.37, None),
    },
    ("efficientnet-b0", "cifar100"): {
        "single": (20.87, 0.25),
        "sse": (19.70, 0.25),
        "ssb": (20.12, 0.41),
        "fge": (19.58, 0.24),
        "cbnn": (18.06, 0.20),
    },
    ("efficientnet-b0", "tiny-imagenet"): {
        "single": (34.50, 0.35),
        "sse": (33.02, 0.32),
        "ssb": (34.02, 0.46),
        "fge": (32.76, 0.31),
        "cbnn": (31.16, 0.26),
    },
    ("efficientnet-b0", "imagenet"): {
        "single": (23.70, 0.21),
        "sse": (23.51, 0.24),
        "ssb": (23.75, 0.35),
        "fge": (23.43, 0.22),
        "cbnn": (22.69, 0.19),
    },
    ("efficientnet-b3", "cifar10"): {
        "single": (3.45, None),
        "sse": (3.30, None),
        "ssb": (3.43, None),
        "fge": (3.27, None),
        "cbnn": (3.28, None),
    },
    ("efficientnet-b3", "cifar100"): {
        "single": (17.28, 0.22),
        "sse": (16.84, 0.29),
        "ssb": (17.25, 0.32),
        "fge": (16.96, 0.24),
        "cbnn": (16.07, 0.13),
    },
    ("efficientnet-b3", "tiny-imagenet"): {
        "single": (31.86, 0.30),
        "sse": (31.01, 0.31),
        "ssb": (31.49, 0.42),
        "fge": (30.97, 0.30),
        "cbnn": (29.85, 0.23),
    },
    ("efficientnet-b3", "imagenet"): {
        "single": (18.30, 0.15),
        "sse": (19.16, 0.22),
        "ssb": (19.59, 0.34),
        "fge": (18.68, 0.20),
        "cbnn": (17.55, 0.14),
    },
}

# (dataset, accuracy in percent) -> method -> hours with EfficientNet-B0.
TABLE2: dict[tuple[str, int], dict[str, Figure]] = {
    ("cifar10", 60): {
        "single": (0.38, None),
        "sse": (0.38, None),
        "ssb": (0.39, None),
        "pe": (0.72, None),
        "cbnn": (0.36, None),
    },
    ("cifar10", 80): {
        "single": (0.78, 0.12),
        "sse": (0.75, 0.10),
        "ssb": (0.76, 0.10),
        "pe": (2.13, 0.34),
        "cbnn": (0.68, 0.07),
    },
    ("cifar10", 90): {
        "single": (5.05, 0.55),
        "sse": (3.92, 0.21),
        "ssb": (4.22, 0.38),
        "pe": (10.13, 0.78),
        "cbnn": (3.62, 0.15),
    },
    ("cifar100", 40): {
        "single": (0.91, 0.08),
        "sse": (0.87, 0.08),
        "ssb": (0.99, 0.09),
        "pe": (2.11, 0.11),
        "cbnn": (0.85, 0.07),
    },
    ("cifar100", 60): {
        "single": (2.71, 0.12),
        "sse": (2.54, 0.11),
        "ssb": (2.62, 0.12),
        "pe": (7.78, 1.23),
        "cbnn": (2.33, 0.10),
    },
    ("cifar100", 70): {
        "single": (7.47, 0.79),
        "sse": (5.16, 0.31),
        "ssb": (5.67, 0.30),
        "pe": (17.32, 1.30),
        "cbnn": (4.82, 0.22),
    },
}

# (model, dataset, treatment) -> method -> error.
TABLE3: dict[tuple[str, str, str], dict[str, Figure]] = {
    ("efficientnet-b0", "cifar100", "original"): {
        "single": (29.19, None),
        "sse": (28.27, None),
        "ssb": (28.66, None),
        "fge": (28.39, None),
        "cbnn": (24.39, None),
    },
    ("efficientnet-b0", "cifar100", "thresholding"): {
        "single": (26.93, None),
        "sse": (25.88, None),
        "ssb": (26.51, None),
        "fge": (26.43, None),
    },
    ("efficientnet-b0", "cifar100", "oversampling"): {
        "single": (27.55, 0.30),
        "sse": (26.14, 0.42),
        "ssb": (27.18, 0.33),
        "fge": (26.83, 0.29),
    },
    ("efficientnet-b0", "tiny-imagenet", "original"): {
        "single": (45.25, None),
        "sse": (43.79, None),
        "ssb": (44.98, None),
        "fge": (43.77, None),
        "cbnn": (40.23, None),
    },
    ("efficientnet-b0", "tiny-imagenet", "thresholding"): {
        "single": (42.58, None),
        "sse": (41.26, None),
        "ssb": (42.47, None),
        "fge": (41.03, None),
    },
    ("efficientnet-b0", "tiny-imagenet", "oversampling"): {
        "single": (43.12, 0.67),
        "sse": (42.06, 0.65),
        "ssb": (43.13, 0.69),
        "fge": (41.78, 0.55),
    },
    ("efficientnet-b3", "cifar100", "original"): {
        "single": (27.08, None),
        "sse": (26.49, None),
        "ssb": (26.78, None),
        "fge": (26.23, None),
        "cbnn": (22.98, None),
    },
    ("efficientnet-b3", "cifar100", "thresholding"): {
        "single": (25.01, None),
        "sse": (24.56, None),
        "ssb": (24.89, None),
        "fge": (24.16, None),
    },
    ("efficientnet-b3", "cifar100", "oversampling"): {
        "single": (25.86, 0.30),
        "sse": (25.11, 0.33),
        "ssb": (25.46, 0.39),
        "fge": (24.86, 0.34),
    },
    ("efficientnet-b3", "tiny-imagenet", "original"): {
        "single": (43.34, None),
        "sse": (42.26, None),
        "ssb": (42.99, None),
        "fge": (42.58, None),
        "cbnn": (39.02, None),
    },
    ("efficientnet-b3", "tiny-imagenet", "thresholding"): {
        "single": (41.33, None),
        "sse": (40.47, None),
        "ssb": (41.30, None),
        "fge": (41.29, None),
    },
    ("efficientnet-b3", "tiny-imagenet", "oversampling"): {
        "single": (42.01, 0.60),
        "sse": (40.36, 0.45),
        "ssb": (41.76, 0.59),
        "fge": (41.12, 0.48),
    },
}
